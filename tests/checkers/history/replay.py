"""Replaying what a reader saw: Changes in, tables out, and every step that does not follow from the one before.

`delivered` first takes away what a kill made a reader see twice: the batch that it wrote down and died before
saving the cursor. Everything else counts.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from forge.change import Change, Op
from forge.cursor import Cursor
from forge.errors import CursorInvalid
from tests.checkers.history.model import Discrepancy, ReaderRecord, Record, canonical, show
from tests.checkers.history.tables import added_default


def delivered(reader: ReaderRecord) -> tuple[list[Record], list[Discrepancy]]:
    """The records that count, one following the other, and where they do not follow."""
    kept: list[Record] = []
    wrong: list[Discrepancy] = []
    for record in reader.records:
        first_of_life = not kept or record.run != kept[-1].run
        if first_of_life and kept and record.start == kept[-1].start != kept[-1].end:
            kept.pop()
        stands = kept[-1].end if kept else reader.begin
        if record.start != stands:
            wrong.append(Discrepancy("cursor", reader.name, f"stood at {stands} and went on from {record.start}"))
        if problem := _backwards(record):
            wrong.append(Discrepancy("cursor", reader.name, problem))
        kept.append(record)
    return kept, wrong


def _backwards(record: Record) -> str | None:
    try:
        start, end = Cursor.parse(record.start), Cursor.parse(record.end)
    except CursorInvalid:
        return None
    before, after = start.until or start.snapshot, end.until or end.snapshot
    if start.log != end.log:
        return f"the log became another one: {record.start} to {record.end}"
    if after.xmax < before.xmax or after.xmin < before.xmin:
        return f"the cursor went back: {record.start} to {record.end}"
    return None


class Replica:
    """One table rebuilt from its changes: by key, or, without one, as a bag of rows.

    After an INVALIDATE, where one may come, its rows are not known until it is emptied.
    """

    def __init__(self, table: str, *, keyed: bool, wiped: bool = False) -> None:
        self.table = table
        self.known = True
        self._keyed = keyed
        self._wiped = wiped
        self._rows: dict[bytes, bytes] = {}
        self._bag: Counter[bytes] = Counter()
        self._columns: frozenset[str] = frozenset()
        self._defined = False

    def apply(self, change: Change) -> str | None:
        """Take one change in; say what is wrong with it, if something is."""
        problem = self._definition(change)
        if change.op is Op.SCHEMA:
            self._defined = True
        elif change.op is Op.TRUNCATE:
            self._rows.clear()
            self._bag.clear()
            self.known = True
        elif change.op is Op.INVALIDATE and self._wiped:
            self.known = False
        elif change.op not in (Op.INSERT, Op.UPDATE, Op.DELETE):
            return f"a change that nobody made: {show(change)}"
        elif self._keyed:
            problem = (self._apply_keyed(change) if self.known else None) or problem
        else:
            problem = (self._apply_whole(change) if self.known else None) or problem
        return problem

    def rows(self) -> Counter[bytes]:
        """Every row, with how often it is there."""
        return Counter(self._rows.values()) if self._keyed else +self._bag

    def _definition(self, change: Change) -> str | None:
        """Columns come only by a change of definition, and go never."""
        names = frozenset((change.after or change.before or {}).keys())
        if not names or names == self._columns:
            return None
        added, gone = names - self._columns, self._columns - names
        told, self._columns, self._defined = self._defined, names, False
        if gone:
            return f"{show(change)} lacks the columns {sorted(gone)}"
        if not told and any(added_default(name) is not None for name in added):
            return f"{show(change)} has the columns {sorted(added)}, and no change of definition came before"
        return None

    def _apply_keyed(self, change: Change) -> str | None:
        if change.key is None:
            return f"no key: {show(change)}"
        key = canonical(change.key)
        is_now = self._rows.get(key)
        was = canonical(change.before) if change.before is not None else None
        if change.after is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = canonical(change.after)
        if is_now == was:
            return None
        return f"{change.op} {change.id} of row {change.row_id} wants {show(was)} before it, there was {show(is_now)}"

    def _apply_whole(self, change: Change) -> str | None:
        if change.key is not None:
            return f"a key in a table that has none: {show(change)}"
        problem = None
        if change.before is not None:
            was = canonical(change.before)
            if self._bag[was] < 1:
                problem = f"{change.op} {change.id} takes away a row that is not there: {show(was)}"
            self._bag[was] -= 1
        if change.after is not None:
            self._bag[canonical(change.after)] += 1
        return problem


def replay(
    changes: Iterable[Change], keys: Mapping[str, Sequence[str]], wiped: Collection[str] = ()
) -> tuple[dict[str, Replica], list[tuple[Change, str]]]:
    """Every table of `keys` (its key columns) rebuilt from nothing, and each change that does not fit."""
    replicas = {name: Replica(name, keyed=bool(key), wiped=name in wiped) for name, key in keys.items()}
    wrong = []
    for change in changes:
        replica = replicas.get(change.table)
        problem = replica.apply(change) if replica else f"a change of an unknown table: {show(change)}"
        if problem:
            wrong.append((change, problem))
    return replicas, wrong
