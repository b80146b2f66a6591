"""Convert the events of a binary log into changes; a state machine that reads no socket.

In: raw events in order (`take`). Out: `changes` with the `columns` of each, and `cursor`, which is behind them. A
transaction begins with its global transaction id (or BEGIN) and ends with its commit; each event in it that changes
something has a number, counted whether or not it is wanted, so the id of a change, `{transaction}.{event}.{row}`, is
the same for every reader, at any time and with any filter. Resuming inside a transaction reads it again from its start
and leaves out the events that were handled.

Only committed transactions are in the log, with four exceptions; each is reported as `invalidate` of the affected
tables: a transaction that ends in a rollback (it touched tables that cannot roll back), one that a crash of the server
left without an end, XA transactions, whose commit comes after their rows, and statements that are logged as text.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Final

from forge.capture.mysql import tables
from forge.capture.mysql.cascades import Name
from forge.capture.mysql.comments import said
from forge.capture.mysql.cursor import BinlogPosition, MysqlCursor, TableProgress
from forge.capture.mysql.rows import MysqlTableVersion, Row
from forge.capture.mysql.statements import effect
from forge.capture.mysql.tables import lenenc, parse_map, parse_names
from forge.capture.mysql.transaction_changes import Account, TableCatalog
from forge.change import Change, Op, same
from forge.errors import CursorForeign, DecodeError, SourceError, TableMapMismatch
from forge.values import Column

_HEADER = struct.Struct("<IBIIIH")
_QUERY, _STOP, _ROTATE, _FORMAT, _XID, _MAP, _INCIDENT, _HEARTBEAT = 2, 3, 4, 15, 16, 19, 26, 27
_QUERY_ROWS, _GTID, _ANONYMOUS, _XA_PREPARE, _PARTIAL, _PAYLOAD, _TAGGED, _HEARTBEAT2 = 29, 33, 34, 38, 39, 40, 42, 41
_ANNOTATE, _MARIADB_GTID, _QUERY_COMPRESSED = 160, 162, 165
_WRITES, _UPDATES, _DELETES = (23, 30, 166, 169), (24, 31, 167, 170), (25, 32, 168, 171)
_ROWS: Final = {
    **dict.fromkeys(_WRITES, Op.INSERT),
    **dict.fromkeys(_UPDATES, Op.UPDATE),
    **dict.fromkeys(_DELETES, Op.DELETE),
}
_SECOND = (30, 31, 32, 169, 170, 171)
_COMPRESSED = (166, 167, 168, 169, 170, 171)
_ARTIFICIAL = 0x20
_NO_FOREIGN_KEYS = 2
_STANDALONE, _PREPARED, _COMPLETED = 1, 64, 128


class BinlogChanges:
    """The changes from the events so far, since they were last taken."""

    def __init__(
        self,
        catalog: TableCatalog,
        name: str,
        after: MysqlCursor,
        *,
        checksums: bool,
        context: bool = True,
        settled: bool = True,
    ) -> None:
        self.malformed = 0
        """Number of comments meant for Forge that could not be parsed."""
        self.found: BinlogPosition | None = None
        """The start of the current file according to the server; None until it is known."""
        self._catalog = catalog
        self._account: Final = Account(catalog, name, after.events)
        self._identity = after.server
        self._expected: BinlogPosition | None = after.place
        self._gtids = {text.partition("-")[0]: text for text in after.gtid.split(",") if text}
        self._checksums = checksums
        self._context_wanted = context
        self._file = after.place.file
        self._created = after.place.created
        self._position = after.place.offset
        self._resume = after.place.offset
        self._inside = self._begun = self._standalone = self._prepared = False
        self._gtid: tuple[str, str] | None = None
        self._settled = settled
        self._size = self._kind = 0
        self._versions: dict[bytes, MysqlTableVersion | None] = {}
        self._maps: dict[bytes, tuple[Name, bytes]] = {}
        self._handlers: dict[int, Callable[[bytes, int, int], None]] = {
            **dict.fromkeys(_ROWS, self._rows),
            _MAP: self._map,
            _XID: self._commit,
            _QUERY: self._query,
            _QUERY_COMPRESSED: self._query,
            _MARIADB_GTID: self._mariadb_gtid,
            _GTID: self._mysql_gtid,
            _ANONYMOUS: self._mysql_gtid,
            _TAGGED: self._mysql_gtid,
            _ANNOTATE: self._annotate,
            _QUERY_ROWS: self._annotate,
            _XA_PREPARE: self._xa_prepare,
            _PARTIAL: self._partial,
            _PAYLOAD: self._payload,
            _INCIDENT: self._incident,
        }

    @property
    def changes(self) -> list[Change]:
        return self._account.changes

    @property
    def columns(self) -> list[tuple[Column, ...]]:
        return self._account.columns

    def cursor(self, progress: TableProgress | None = None) -> MysqlCursor:
        """Return the cursor behind everything that was taken so far."""
        place = BinlogPosition(self._file, self._resume, self._created)
        # Until the server has sent the handled events again, the cursor must not fall back behind them.
        events = max(self._account.events, self._account.skip)
        gtids = ",".join(self._gtids[key] for key in sorted(self._gtids, key=int))
        return MysqlCursor(self._identity, place, events, gtids, progress)

    @property
    def settled(self) -> bool:
        """Tell whether `cursor` may be used: not before the first transaction, if another server found the place."""
        return self._settled

    @property
    def reached(self) -> tuple[str, int]:
        """Return the file and offset behind the last whole transaction."""
        return self._file, self._resume

    def empty(self) -> None:
        """Drop the changes: they were delivered."""
        self._account.empty()

    def take(self, event: bytes) -> None:
        """Process one event, from its header on."""
        seconds, kind, server, size, stop, flags = _HEADER.unpack_from(event)
        if kind == _ROTATE:
            self._rotate(event, seconds, flags)
            return
        if kind == _FORMAT:
            self._format(event, seconds, size, stop, flags)
            return
        if kind in (_HEARTBEAT, _HEARTBEAT2):
            return
        if self._checksums:
            if zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
                raise DecodeError(
                    f"an event of {self._file} before {stop} is damaged: its checksum is wrong",
                    fix="check the server's disk, purge the log and take a new snapshot",
                )
            event = event[:-4]
        if not flags & _ARTIFICIAL and stop:
            end = self._position + size
            self._position = end if end & 0xFFFFFFFF == stop else stop
        handler = self._handlers.get(kind)
        if handler is not None:
            self._account.at = seconds
            self._size = size
            self._kind = kind
            handler(event, seconds, server)
        if not self._inside:
            self._resume = self._position

    # -- files -----------------------------------------------------------------------------------------

    def _rotate(self, event: bytes, seconds: int, flags: int) -> None:
        if zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            event = event[:-4]
        offset, file = int.from_bytes(event[19:27], "little"), event[27:].decode()
        self._maps.clear()
        if file != self._file or not (flags & _ARTIFICIAL or seconds == 0):
            self._abandoned()
            self._file, self._position, self._resume = file, offset, offset
            self._created = 0

    def _format(self, event: bytes, seconds: int, size: int, stop: int, flags: int) -> None:
        self._abandoned()
        self._checksums = event[-5] == 1
        self._created = seconds
        if stop and not flags & _ARTIFICIAL:
            self._position = self._resume = max(self._position, stop)
        expected, self._expected = self._expected, None
        if expected is not None and expected.file == self._file and expected.created not in (0, seconds):
            raise CursorForeign(
                f"{self._file} of the server is not the file that the cursor stands in",
                fix="take a new snapshot: the server was reset or restored, or is another one",
            )
        self.found = BinlogPosition(self._file, self._position, seconds)

    # -- transactions ----------------------------------------------------------------------------------

    def _begin(self, transaction: str, gtid: tuple[str, str] | None, *, standalone: bool) -> None:
        self._abandoned()
        start = self._position - self._size
        self._resume = start
        self._settled = True
        self._inside, self._standalone, self._begun = True, standalone, False
        self._gtid = gtid
        self._account.begin(transaction, self._file, start)

    def _mariadb_gtid(self, event: bytes, seconds: int, server: int) -> None:
        number, domain, flags = struct.unpack_from("<QIB", event, 19)
        text = f"{domain}-{server}-{number}"
        self._begin(text, (str(domain), text), standalone=bool(flags & _STANDALONE))
        self._begun = not flags & _STANDALONE
        self._prepared = bool(flags & _PREPARED)

    def _mysql_gtid(self, event: bytes, seconds: int, server: int) -> None:
        text = ""
        if self._kind == _GTID:
            sid = event[20:36].hex()
            (number,) = struct.unpack_from("<Q", event, 36)
            text = f"{sid[:8]}-{sid[8:12]}-{sid[12:16]}-{sid[16:20]}-{sid[20:]}:{number}"
        self._begin(text, None, standalone=False)
        self._prepared = False

    def _end(self) -> None:
        if self._gtid is not None:
            self._gtids[self._gtid[0]] = self._gtid[1]
        self._inside = self._prepared = False
        self._account.end()
        self._maps.clear()

    def _commit(self, event: bytes, seconds: int, server: int) -> None:
        self._end()

    def _abandoned(self) -> None:
        """Handle a transaction without an end: its reported changes may be wrong."""
        if self._inside and self._account.touched:
            self._account.invalidate(self._account.touched, "the server crashed in the middle of a transaction")
        if self._inside:
            self._inside = self._prepared = False
            self._account.end()

    def _xa_prepare(self, event: bytes, seconds: int, server: int) -> None:
        """Handle the rows of an XA transaction, whose end is open: they are reported when it commits, or never."""
        if event[19] and self._account.number():
            self._account.invalidate(self._account.touched, "an XA transaction was committed in one phase")
        self._end()

    # -- statements ------------------------------------------------------------------------------------

    def _query(self, event: bytes, seconds: int, server: int) -> None:
        names, words = event[19 + 8], int.from_bytes(event[19 + 11 : 19 + 13], "little")
        at = 19 + 13 + words
        schema = event[at : at + names].decode()
        data = event[at + names + 1 :]
        if self._kind == _QUERY_COMPRESSED:
            data = _unpacked(data)
        sql = data.decode("utf-8", "replace")
        found = effect(sql, schema)
        if not self._inside:
            self._begin("", None, standalone=found.kind != "begin")
        if found.kind == "begin":
            self._begun = True
            return
        if found.kind == "commit":
            self._end()
            return
        if found.kind == "rollback":
            if self._account.touched:
                self._account.number()
                self._account.invalidate(self._account.touched, "the transaction was rolled back")
            self._end()
            return
        if found.kind == "xa":
            self._xa(sql)
            return
        if found.kind != "none":
            number = self._account.number()
            if found.kind in ("schema", "database"):
                self._versions.clear()
                self._catalog.forget()
            if number:
                self._statement(found.kind, found.tables, sql)
        if not self._begun or self._standalone:
            self._end()

    def _statement(self, kind: str, names: Iterable[Name], sql: str) -> None:
        if kind == "rollback to":
            self._account.invalidate(self._account.touched, "a part of the transaction was rolled back")
        elif kind == "rows":
            self._account.invalidate(self._catalog.followed(), "a statement was logged as text")
        elif kind == "truncate":
            for name in names:
                self._account.whole(Op.TRUNCATE, name)
                self._account.cascade(name, Op.DELETE, None)
        elif kind == "database":
            ((schema, _),) = names
            for name in sorted({*(each for each in self._catalog.followed() if each[0] == schema), (schema, "*")}):
                self._account.whole(Op.SCHEMA, name, {"statement": sql[:1000]})
        else:
            for name in dict.fromkeys(names):
                self._account.whole(Op.SCHEMA, name, {"statement": sql[:1000]})

    def _xa(self, sql: str) -> None:
        """Handle XA: START and END are inside the group of rows; COMMIT makes prepared rows visible."""
        word = sql.split(None, 2)[1].lower() if len(sql.split(None, 2)) > 1 else ""
        if word in ("start", "begin"):
            self._prepared = True
        if word == "commit" and self._account.number():
            self._account.invalidate(self._catalog.followed(), "an XA transaction was committed")
        if word in ("commit", "rollback"):
            self._end()

    def _incident(self, event: bytes, seconds: int, server: int) -> None:
        if not self._inside:
            self._begin("", None, standalone=True)
        if self._account.number():
            self._account.invalidate(self._catalog.followed(), "the server says that events are missing from its log")
        self._end()

    def _annotate(self, event: bytes, seconds: int, server: int) -> None:
        if not self._context_wanted:
            return
        at = 20 if self._kind == _QUERY_ROWS else 19
        if b"forge:" not in event[at : at + 64]:
            return
        try:
            self._account.context = said(event[at : at + 16384].decode("utf-8", "replace")) or self._account.context
        except ValueError:
            self.malformed += 1

    # -- rows ------------------------------------------------------------------------------------------

    def _map(self, event: bytes, seconds: int, server: int) -> None:
        body = event[19:]
        self._maps[body[:6]] = (parse_names(body)[:2], body)

    def _version(self, body: bytes) -> MysqlTableVersion | None:
        """Return the table's version, or None if the catalog does not fit its map."""
        if body in self._versions:
            return self._versions[body]
        made = parse_map(body, self._catalog.mariadb)
        try:
            tables.complete(made, self._catalog.known(made.schema, made.table), self._catalog.collations())
            found: MysqlTableVersion | None = MysqlTableVersion(made, self._catalog.charset)
        except TableMapMismatch:
            found = None
        if len(self._versions) > 5000:
            self._versions.clear()
        self._versions[body] = found
        return found

    def _rows(self, event: bytes, seconds: int, server: int) -> None:
        account = self._account
        account.number()
        mapped = self._maps.get(event[19:25])
        if mapped is None:
            return
        name, body = mapped
        wanted = self._catalog.wants(*name)
        if wanted:
            account.touched.add(name)
        wanted = wanted and not self._prepared
        cascading = name in self._catalog.cascades() and not self._prepared
        if not (wanted or cascading):
            return
        op = _ROWS[self._kind]
        told = account.told
        flags = int.from_bytes(event[25:27], "little")
        if op is Op.INSERT:
            cascading = False
        if not (cascading or (wanted and told)):
            return
        version = self._version(body)
        if version is None:
            if told and wanted:
                account.whole(Op.INVALIDATE, name, {"reason": "the table is another one by now"})
            if cascading:
                account.cascade(name, op, None)
            return
        if version.sequence:
            return
        rows = self._decoded(version, event, op)
        if wanted and told:
            account.rows(version, op, rows)
        if cascading and not flags & _NO_FOREIGN_KEYS:
            changed = None
            if op is Op.UPDATE:
                pairs = zip(rows[::2], rows[1::2], strict=True)
                changed = {key for old, new in pairs for key in new if not same(old[key], new[key])}
            account.cascade(name, op, changed)

    def _decoded(self, version: MysqlTableVersion, event: bytes, op: Op) -> list[Row]:
        at = 27
        if self._kind in _SECOND:
            at += int.from_bytes(event[27:29], "little")
        _, at = lenenc(event, at)
        width = version.width
        present = event[at : at + width]
        at += width
        after = present
        if op is Op.UPDATE:
            after = event[at : at + width]
            at += width
        if self._kind in _COMPRESSED:
            event, at = _unpacked(event[at:]), 0
        if op is Op.UPDATE:
            return version.updates(present, after, event, at, len(event))
        return version.rows(present, event, at, len(event))

    def _partial(self, event: bytes, seconds: int, server: int) -> None:
        """Handle MySQL's partial updates of JSON, which have only a part of a value."""
        mapped = self._maps.get(event[19:25])
        if self._account.number() and mapped is not None and self._catalog.wants(*mapped[0]):
            self._account.whole(Op.INVALIDATE, mapped[0], {"reason": "a JSON value was logged in parts"})

    def _payload(self, event: bytes, seconds: int, server: int) -> None:
        raise SourceError(
            "the server logs compressed transactions, which this Forge cannot read",
            fix="SET GLOBAL binlog_transaction_compression = OFF, then take a new snapshot",
        )


def _unpacked(data: bytes) -> bytes:
    """Decompress MariaDB's format: a byte with the size of the length, the length, and zlib's stream."""
    try:
        return zlib.decompress(data[1 + (data[0] & 7) :])
    except zlib.error as error:
        raise DecodeError(f"a compressed event cannot be decoded: {error}", fix="check the server's disk") from None
