"""Compare one table: the sums of both sides by slice, then the rows of differing slices."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forge.change import Op
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load
from forge.pipeline.verify.report import Kind, RowDifference, TableReport
from forge.pipeline.verify.sides import ComparedRow, ComparedTable, InDatabase, InLake, Sums, comparable
from forge.pipeline.verify.slices import ByHash, ByRange, Slices

SHOWN: Final = 20
"""The number of differences that are listed per table; all are counted."""

AT_ONCE: Final = 200_000
"""The number of rows of both sides that are compared together, unless a single slice has more."""


class Misfits(NamedTuple):
    """The quarantine of a table: rows as they would be, the newest removal of each row, and why they did not fit."""

    rows: Counter[tuple[str, int]]
    removed: dict[str, list[str]]
    reasons: dict[tuple[str, int], str]


def compare(
    spark: SparkSession,
    lake: Lake,
    definition: Definition,
    names: dict[str, str],
    there: InDatabase,
    slices: int,
) -> TableReport:
    """Compare a table whose columns have these names in the lake."""
    here = InLake(spark, lake.current(definition.name))
    columns = comparable(definition.columns, names, here.types)
    table = ComparedTable(definition.name, tuple(columns), definition.key)
    division = _division(table, here, slices)
    stored, held = there.sums(table, division), here.sums(table, division)
    differing = sorted(slice for slice in stored.keys() | held.keys() if stored.get(slice) != held.get(slice))
    misfits = _misfits(spark, lake, table, there, division) if differing else Misfits(Counter(), {}, {})
    counts: Counter[Kind] = Counter()
    shown: list[RowDifference] = []
    for part in _parts(differing, stored, held):
        rows, copies = there.rows(table, division, part), here.rows(table, division, part)
        for difference in _differences(table, rows, copies, misfits):
            counts[difference.kind] += 1
            if len(shown) < SHOWN:
                shown.append(difference)
    shown_columns = {column.name for column in definition.columns if column.kind != "hidden"}
    return TableReport(
        definition.name,
        sum(count for count, _ in stored.values()),
        sum(count for count, _ in held.values()),
        counts["missing"],
        counts["extra"],
        counts["changed"],
        counts["missing"] + counts["extra"] + counts["changed"],
        counts["quarantined"],
        shown,
        tuple(sorted(shown_columns - set(table.names))),
        counts["redacted"],
    )


def _division(table: ComparedTable, here: InLake, slices: int) -> Slices:
    bounds = here.bounds(table.whole_key) if table.whole_key is not None else None
    return ByHash(slices) if bounds is None else ByRange.over(*bounds, slices)


def _parts(slices: Sequence[int], stored: Sums, held: Sums) -> Iterator[list[int]]:
    """Divide the slices into parts of at most the number of rows that are compared together."""
    part: list[int] = []
    rows = 0
    for slice in slices:
        here = stored.get(slice, (0, 0))[0] + held.get(slice, (0, 0))[0]
        if part and rows + here > AT_ONCE:
            yield part
            part, rows = [], 0
        part.append(slice)
        rows += here
    if part:
        yield part


def _misfits(spark: SparkSession, lake: Lake, table: ComparedTable, there: InDatabase, slices: Slices) -> Misfits:
    """Return the quarantined rows, read in the same way as the database reads its own rows."""
    found = Misfits(Counter(), defaultdict(list), {})
    if not exists(spark, lake.quarantine):
        return found
    mine = F.concat_ws(".", "schema", "table") == table.name
    kept = load(spark, lake.quarantine).where(mine & F.col("payload").startswith("{"))
    batch: list[tuple[str, str, str, str]] = []

    def read() -> None:
        rows = there.read(table, slices, [payload for *_, payload in batch])
        for (seq, op, reason, _), row in zip(batch, rows, strict=True):
            if op == Op.DELETE:
                found.removed.setdefault(row.id, []).append(seq)
            else:
                found.rows[row.id, row.hash] += 1
                found.reasons[row.id, row.hash] = reason
        batch.clear()

    for row in kept.select("seq", "op", "reason", "payload").toLocalIterator():
        batch.append((row["seq"], row["op"], row["reason"], row["payload"]))
        if len(batch) == 5000:
            read()
    if batch:
        read()
    return found


def _differences(
    table: ComparedTable, rows: Iterable[ComparedRow], copies: Iterable[ComparedRow], misfits: Misfits
) -> Iterator[RowDifference]:
    if not table.key:
        yield from _counted(table, rows, copies, misfits)
        return
    stored, held = {row.id: row for row in rows}, {row.id: row for row in copies}
    for id in sorted(stored.keys() | held.keys()):
        row, copy = stored.get(id), held.get(id)
        if row is not None and copy is not None:
            if row.hash == copy.hash:
                continue
            kind: Kind = "quarantined" if (id, row.hash) in misfits.rows else "changed"
            columns = row.differs(copy, table.names)
            if kind == "changed" and columns and copy.redacted.issuperset(columns):
                kind = "redacted"
            yield RowDifference(table.name, table.shown(row.key), kind, columns, misfits.reasons.get((id, row.hash)))
        elif row is not None:
            kind = "quarantined" if (id, row.hash) in misfits.rows else "missing"
            yield RowDifference(table.name, table.shown(row.key), kind, (), misfits.reasons.get((id, row.hash)))
        elif copy is not None:
            gone = any(seq > copy.seq for seq in misfits.removed.get(id, ()))
            yield RowDifference(table.name, table.shown(copy.key), "quarantined" if gone else "extra")


def _counted(
    table: ComparedTable, rows: Iterable[ComparedRow], copies: Iterable[ComparedRow], misfits: Misfits
) -> Iterator[RowDifference]:
    """Count the occurrences of each row in a table without a key."""
    stored, held = Counter(row.id for row in rows), Counter(copy.id for copy in copies)
    inserted = Counter({id: number for (id, _), number in misfits.rows.items()})
    for id, number in sorted((stored - held).items()):
        kept = min(number, inserted[id])
        yield from [RowDifference(table.name, id, "quarantined")] * kept
        yield from [RowDifference(table.name, id, "missing")] * (number - kept)
    for id, number in sorted((held - stored).items()):
        kept = min(number, len(misfits.removed.get(id, ())))
        yield from [RowDifference(table.name, id, "quarantined")] * kept
        yield from [RowDifference(table.name, id, "extra")] * (number - kept)
