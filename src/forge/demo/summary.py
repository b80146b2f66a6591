"""Summary at the end of the demo: changes written, changes seen, and whether they are the same."""

from collections.abc import Mapping, Sequence
from statistics import quantiles

import msgspec

from forge.doctor.finding import count


class LakeState(msgspec.Struct, frozen=True):
    """The final state of a lake: the number of changes it has, the number it lacks, and whether it equals the database.

    `equal` is True only for a lake that lacks nothing; `missing` is None where it is unknown.
    """

    batches: int
    changes: int
    equal: bool | None
    problem: str | None = None
    missing: int | None = None

    def line(self) -> str:
        """Return the lake's line for people.

        >>> LakeState(3, 1204, True).line()
        'lake   1,204 changes in 3 batches   lake = database ✓'
        >>> LakeState(1, 1, None, missing=12).line()
        'lake   1 change in 1 batch   ✗ not compared: it did not catch up in time, 12 changes missing'
        >>> LakeState(1, 7, None, "interrupted", missing=1).line()
        'lake   7 changes in 1 batch   ✗ not compared: interrupted, 1 change missing'
        """
        batches = "1 batch" if self.batches == 1 else f"{self.batches:,} batches"
        why = self.problem or "it did not catch up in time"
        lacks = f", {count(self.missing, 'change')} missing" if self.missing else ""
        unknown = f"✗ not compared: {why}{lacks}"
        verdict = {True: "lake = database ✓", False: "✗ lake ≠ database", None: unknown}[self.equal]
        return f"lake   {count(self.changes, 'change')} in {batches}   {verdict}"


class Summary(msgspec.Struct, frozen=True):
    """`written` is the server's count of the writers' rows, `logged` the count in the log, `seen` the count in the
    feed."""

    seconds: float
    transactions: int
    written: int
    logged: int
    seen: int
    repeated: int
    tables: Mapping[str, int]
    p50_ms: float | None
    p95_ms: float | None
    lake: LakeState | None = None

    @property
    def whole(self) -> bool:
        """Whether every written change was logged and seen exactly once, and the lake equals the database."""
        seen = self.written == self.logged == self.seen and self.repeated == 0
        return seen and (self.lake is None or self.lake.equal is True)

    def lines(self) -> list[str]:
        """Return the summary for people."""
        same = self.written == self.logged == self.seen and self.repeated == 0
        verdict = "nothing lost, nothing twice ✓" if same else "✗ these should be equal, without repeats"
        repeated = f"   {self.repeated} repeated" if self.repeated else ""
        lines = [
            f"{self.seconds:.1f} s   {self.transactions} transactions   {self.written} changes written   "
            f"{self.logged} in the log   {self.seen} seen{repeated}   {verdict}",
            "   ".join(f"{table} {count}" for table, count in sorted(self.tables.items())),
        ]
        if self.p50_ms is not None and self.p95_ms is not None:
            lines.append(f"commit to feed   p50 {self.p50_ms:.1f} ms   p95 {self.p95_ms:.1f} ms")
        if self.lake is not None:
            lines.append(self.lake.line())
        return [line for line in lines if line]


def percentiles(seconds: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 50th and the 95th percentile in milliseconds.

    >>> percentiles([0.001] * 99 + [1.0]), percentiles([0.002]), percentiles([])
    ((1.0, 1.0), (2.0, 2.0), (None, None))
    """
    if not seconds:
        return None, None
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else list(seconds) * 19
    return cuts[9] * 1000, cuts[18] * 1000
