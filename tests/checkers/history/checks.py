"""The promise as functions: what writers know, what readers wrote down and what the database says, held together.

`check` returns every discrepancy; an empty list means that in this history

- every row of the log was delivered to every reader exactly once, and nothing else ever was;
- cursors only went on, and each row's changes came in the row's own order, before being the previous after;
- replaying what any reader saw rebuilds every table exactly;
- what a writer saw committed is in the log whole, what it saw aborted is not there at all, what it cannot know
  is there whole or not at all, and only a crash took back what was not committed synchronously.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from forge.change import Change
from tests.checkers.history.model import (
    Attempt,
    Discrepancy,
    Effect,
    LogRow,
    Outcome,
    ReaderRecord,
    Record,
    Truth,
    canonical,
    log_id,
    show,
)
from tests.checkers.history.replay import delivered, replay

MOST = 20
"""So many discrepancies of one reader are reported; there may be more."""


def check(
    truth: Truth, attempts: Sequence[Attempt], readers: Sequence[ReaderRecord], keys: Mapping[str, Sequence[str]]
) -> list[Discrepancy]:
    """Everything that must not be."""
    found = check_writers(truth, attempts)
    happened = [attempt for attempt in attempts if attempt.outcome is not Outcome.ABORTED]
    wiped = {effect.table for attempt in happened for effect in attempt.effects if effect.kind == "wipe"}
    for reader in readers:
        found += check_reader(truth, reader, keys, wiped)[:MOST]
    return found


def check_writers(truth: Truth, attempts: Iterable[Attempt]) -> list[Discrepancy]:
    """The log against what each writer knows of its transactions."""
    traced: dict[str, list[LogRow]] = defaultdict(list)
    for row in truth.log:
        if row.trace:
            traced[row.trace].append(row)
    found = []
    for attempt in attempts:
        for mark in attempt.undone:
            if rows := traced.get(mark):
                found.append(Discrepancy("undone", attempt.name, f"{mark} was rolled back and is logged: {show(rows)}"))
        present = [effect for effect in attempt.effects if effect.mark in traced]
        if attempt.outcome is Outcome.ABORTED:
            found += [
                Discrepancy("aborted", attempt.name, f"{effect} is logged: {show(traced[effect.mark])}")
                for effect in present
            ]
            continue
        crashed = any(crash >= attempt.ended for crash in truth.crashes)
        vague = attempt.outcome is Outcome.UNKNOWN or (not attempt.synchronous and crashed)
        if vague and not present:
            continue
        for effect in attempt.effects:
            seen = logged(effect, traced.get(effect.mark, []))
            if effect.rows is not None and seen != effect.rows:
                kind = "torn" if vague else "unlogged"
                found.append(Discrepancy(kind, attempt.name, f"{effect}, of which {seen} rows are logged"))
    return found


def logged(effect: Effect, rows: Iterable[LogRow]) -> int:
    """How many of an operation's rows are in the log, not counting what triggers did to them afterwards."""
    own = [row for row in rows if row.table == effect.table]
    if effect.kind == "delete":
        return sum(row.op == "D" for row in own)
    if effect.kind == "truncate":
        return sum(row.op == "T" for row in own)
    return sum(row.new == effect.mark and (row.op == "I" or (row.op == "U" and row.old != effect.mark)) for row in own)


def check_reader(
    truth: Truth, reader: ReaderRecord, keys: Mapping[str, Sequence[str]], wiped: Collection[str] = ()
) -> list[Discrepancy]:
    """One reader's record against the log and the tables; a table of `wiped` may be invalidated."""
    log = [row for row in truth.log if reader.tables is None or row.table in reader.tables]
    ids = {row.id for row in log}
    records, found = delivered(reader)
    changes = [change for record in records for change in record.changes]
    counts = Counter(map(log_id, changes))

    def report(kind: str, what: str) -> None:
        found.append(Discrepancy(kind, reader.name, what))

    for row in log:
        if row.id not in counts:
            report("lost", show(row))
    for change in changes:
        if counts[log_id(change)] > 1:
            report("doubled", f"{counts.pop(log_id(change))} times: {show(change)}")
    for change in {log_id(c): c for record in reader.records for c in record.changes}.values():
        if log_id(change) not in ids:
            report("phantom", f"not in the log: {show(change)}")
    found += _order(reader.name, log, changes)
    mine = {table: columns for table, columns in keys.items() if reader.tables is None or table in reader.tables}
    replicas, wrong = replay(changes, mine, wiped)
    for _, problem in wrong:
        report("chain", problem)
    for table, replica in replicas.items():
        rebuilt, real = replica.rows(), Counter(canonical(row) for row in truth.tables[table])
        if rebuilt != real and replica.known:
            more, less = list((rebuilt - real).elements()), list((real - rebuilt).elements())
            report("rebuild", f"{table}: {len(more)} rows too many {show(more)}, {len(less)} missing {show(less)}")
    return found


def check_suffix(
    truth: Truth, reader: ReaderRecord, records: Sequence[Record], index: int, changes: Iterable[Change]
) -> list[Discrepancy]:
    """What is read again from the cursor after a record, against all that the reader had not seen by then."""
    seen = {log_id(change) for record in records[: index + 1] for change in record.changes}
    log = (row for row in truth.log if reader.tables is None or row.table in reader.tables)
    wanted = Counter(row.id for row in log if row.id not in seen)
    got = Counter(map(log_id, changes))
    if wanted == got:
        return []
    less, more = sorted((wanted - got).elements()), sorted((got - wanted).elements())
    what = f"from {records[index].end}: missing {show(less)}, too many {show(more)}"
    return [Discrepancy("suffix", reader.name, what)]


def _order(name: str, log: Iterable[LogRow], changes: Iterable[Change]) -> list[Discrepancy]:
    """Each row's changes in the order of the log."""
    places = {row.id: (row.place, row.id) for row in log}
    seen = defaultdict(list)
    for change in changes:
        if change.key is not None and log_id(change) in places:
            seen[change.table, change.row_id].append(log_id(change))
    return [
        Discrepancy("order", name, f"{table} {row_id}: came as {show(ids)}")
        for (table, row_id), ids in seen.items()
        if ids != sorted(ids, key=lambda id: places[id])
    ]
