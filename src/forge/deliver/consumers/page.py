"""Page: the changes of one batch of the log that a worker handles, and the cursor after each of them."""

from collections.abc import Sequence

import msgspec

from forge.change import Change
from forge.cursor import Cursor, Position, Snapshot


class ChangePage(msgspec.Struct, frozen=True):
    """Changes in order; everything before `start` is handled, and `end` is the cursor after all of them."""

    start: Cursor
    end: Cursor
    changes: Sequence[Change]

    def cursor(self, place: int) -> Cursor:
        """Return the cursor after the given number of handled changes.

        >>> from forge.cursor import LogIdentity
        >>> from forge.change import Op, Source
        >>> from datetime import datetime, UTC
        >>> log = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "7310000000000000001", 1)
        >>> change = Change("1", Op.INSERT, "public", "t", Source("log", log.uuid, "7.8"), datetime.now(UTC))
        >>> page = ChangePage(Cursor(log, Snapshot(5, 9)), Cursor(log, Snapshot(12, 12)), [change, change])
        >>> str(page.cursor(1)).removeprefix(f"forge1_{log}_"), page.cursor(0) == page.start
        ('5:9:_12:12:_7.8', True)
        """
        if place == 0:
            return self.start
        rank, _, id = self.changes[place - 1].source.position.partition(".")
        return Cursor(self.start.log, self.start.snapshot, self._until, Position(int(rank), int(id)))

    @property
    def _until(self) -> Snapshot:
        return self.start.until or self.end.until or self.end.snapshot
