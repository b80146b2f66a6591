"""Files for unfinished streamed transactions, read when the transactions are committed.

The server sends a large transaction in blocks before it is committed. Each has a temporary file, unlinked from the
start, so nothing is left behind however the process ends. A rolled-back subtransaction is remembered by its number, and
its messages are left out when the transaction is read; so memory does not grow with the transaction.
"""

import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Final

from forge.capture.wal.protocol import unstreamed

BLOCK: Final = 1024 * 1024
_head = struct.Struct(">II")


class TransactionSpool:
    """One transaction's messages, in order."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="forge-wal-", buffering=256 * 1024)  # noqa: SIM115
        self._aborted: set[int] = set()

    def add(self, data: bytes) -> None:
        """Store a message of a block."""
        part, whole = unstreamed(data)
        self._file.write(_head.pack(len(whole), part) + whole)

    def keep(self, data: bytes) -> None:
        """Store a message that belongs to no subtransaction."""
        self._file.write(_head.pack(len(data), 0) + data)

    def abort(self, part: int) -> None:
        """Note that a subtransaction was rolled back."""
        self._aborted.add(part)

    def read(self) -> Iterator[list[bytes]]:
        """Yield the messages that were not rolled back, one block at a time."""
        self._file.seek(0)
        rest = b""
        while block := self._file.read(BLOCK):
            block = rest + block
            found, place, end = [], 0, len(block)
            while place + 8 <= end:
                size, part = _head.unpack_from(block, place)
                if place + 8 + size > end:
                    break
                if part not in self._aborted:
                    found.append(block[place + 8 : place + 8 + size])
                place += 8 + size
            rest = block[place:]
            if found:
                yield found

    def close(self) -> None:
        self._file.close()
