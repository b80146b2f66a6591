"""The raw events of a binary log, as the server sends them to a replica.

In: a connection and the start position. Out: lists of events, each the bytes from its header on, as many as one read
from the socket returned. Nothing is decoded here. An idle server sends heartbeats; if three are missing, the connection
is dropped (TimeoutError), so a half-open connection is noticed.
"""

from __future__ import annotations

import contextlib
import select
import struct
import uuid
from typing import TYPE_CHECKING

from forge.capture.mysql.address import Connection, MysqlAddress
from forge.capture.mysql.catalog import MysqlServer, ask
from forge.errors import CursorExpired, CursorForeign, SourceError

if TYPE_CHECKING:
    import socket


CHUNK = 1 << 18
_DUMP, _REGISTER = 0x12, 0x15
_ANNOTATED = 2
_FORMAT = 15
_MOST = 0xFFFFFF


class BinlogFeed:
    """An open stream of events."""

    def __init__(self, connection: Connection, address: MysqlAddress, heartbeat: float) -> None:
        self._connection = connection
        self._address = address
        self._socket: socket.socket = connection._sock
        self._socket.settimeout(3 * heartbeat)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._rest = b""
        self._parts: list[bytes] = []
        """The packets so far of an event that comes in several."""

    @classmethod
    def open(
        cls,
        connection: Connection,
        address: MysqlAddress,
        told: MysqlServer,
        server_id: int,
        heartbeat: float,
        *,
        file: str,
        offset: int,
        gtid: str | None = None,
        annotated: bool = True,
    ) -> BinlogFeed:
        """Request the events from a place on, or by a global transaction id on MariaDB."""
        period = int(heartbeat * 1e9)
        ask(connection, "SET @master_binlog_checksum = @@global.binlog_checksum")
        ask(connection, f"SET @master_heartbeat_period = {period}, @slave_uuid = '{uuid.uuid4()}'")
        if told.mariadb:
            ask(connection, "SET @mariadb_slave_capability = 4")
            if gtid is not None:
                ask(connection, "SET @slave_connect_state = %s", (gtid,))
                ask(connection, "SET @slave_gtid_strict_mode = 1")
                ask(connection, "SET @slave_gtid_ignore_duplicates = 0")
        else:
            ask(
                connection,
                f"SET @source_binlog_checksum = @@global.binlog_checksum, @source_heartbeat_period = {period}",
            )
        name = struct.pack("<I", server_id) + b"\x05forge\x00\x00" + struct.pack("<HII", 0, 0, 0)
        try:
            connection._execute_command(_REGISTER, name)
            connection._read_packet()
        except OSError:
            raise
        except Exception as error:
            if error.args and error.args[0] in (1045, 1227):  # a logged-in user lacks a privilege, not a password
                raise SourceError(f"{address.name} does not send its log: {error.args[1]}", fix=_fix(1227)) from None
            raise
        flags = _ANNOTATED if annotated and told.mariadb else 0
        log = b"" if gtid is not None else file.encode()
        place = 4 if gtid is not None else offset
        connection._execute_command(_DUMP, struct.pack("<IHI", place, flags, server_id) + log)
        return cls(connection, address, heartbeat)

    def read(self) -> list[bytes]:
        """Return the next events, at least one; raise TimeoutError or ConnectionError if the connection is dead."""
        found: list[bytes] = []
        while not found:
            data = self._rest
            at, size = 0, len(data)
            while size - at >= 4:
                length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
                stop = at + 4 + length
                if stop > size:
                    break
                if length == _MOST or self._parts:
                    self._parts.append(data[at + 4 : stop])
                    if length < _MOST:
                        whole = b"".join(self._parts)
                        self._parts = []
                        self._take(whole, 0, len(whole), found)
                else:
                    self._take(data, at + 4, stop, found)
                at = stop
            self._rest = data[at:] if at else data
            if not found:
                self._more()
        return found

    def _take(self, data: bytes, start: int, stop: int, found: list[bytes]) -> None:
        mark = data[start]
        if mark == 0:
            found.append(data[start + 1 : stop])
        elif mark == 0xFF:
            code = data[start + 1] | data[start + 2] << 8
            words = data[start + 3 : stop]
            raise self._error(code, (words[6:] if words[:1] == b"#" else words).decode("utf-8", "replace"))
        else:
            raise ConnectionError("the server ended the stream")

    def _more(self) -> None:
        """Wait for bytes: enough for the started packet, or a chunk."""
        need = 1
        if len(self._rest) >= 4:
            need = 4 + int.from_bytes(self._rest[:3], "little") - len(self._rest)
        parts = [self._rest]
        while need > 0:
            chunk = self._socket.recv(max(CHUNK, min(need, 1 << 22)))
            if not chunk:
                raise ConnectionError("the server closed the connection")
            parts.append(chunk)
            need -= len(chunk)
        self._rest = b"".join(parts)

    def _error(self, code: int, words: str) -> Exception:
        line = " ".join(words.split())[:300]
        if code == 1236 and any(part in words for part in ("Could not find first log", "purged")):
            return CursorExpired(
                f"the server has purged what follows the cursor: {line}",
                fix="take a new snapshot; keep logs longer with binlog_expire_logs_seconds",
            )
        if code == 1236 and ("impossible position" in words or "GTID" in words):
            return CursorForeign(
                f"the server's log does not have the cursor's place: {line}",
                fix="take a new snapshot: the log was reset, restored, or is another server's",
            )
        if code in (1236, 1227, 1045, 1142):
            return SourceError(f"{self._address.name} does not send its log: {line}", fix=_fix(code))
        return self._address.refused(_Said(code, words))

    def quiet(self) -> bool:
        """Tell whether nothing more can be read at once."""
        pending = getattr(self._socket, "pending", None)
        if pending is not None and pending():
            return False
        if len(self._rest) >= 4 and len(self._rest) >= 4 + int.from_bytes(self._rest[:3], "little"):
            return False
        return not self._poll.poll(0)

    def created(self) -> int:
        """Return when the server began the file, in Unix seconds; read up to where it says so."""
        while True:
            for event in self.read():
                if event[4] == _FORMAT:
                    return int.from_bytes(event[:4], "little")

    def close(self) -> None:
        """Close it at once, without a message to the server."""
        with contextlib.suppress(OSError):
            self._connection._force_close()


class _Said(Exception):
    """An error in the form of the client library's."""


def _fix(code: int) -> str:
    if code == 1236:
        return "check log_bin, server_id and the disk of the server, or take a new snapshot"
    return "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the user of the URL"
