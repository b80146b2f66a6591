"""Envelopes of the real engine beside Forge's, and all that is known to differ, each with its reason."""

import json
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from forge import debezium
from forge.capture.source import Source
from forge.change import Change, Op
from forge.values import Column

EVERYWHERE = {
    "source.version": "the version of what wrote the envelope",
    "source.name": "the connector's topic.prefix; in Forge the database, without secrets",
    "ts_ms": "when the connector made the event; in Forge when it was written, the same however often it is encoded",
    "ts_us": "as ts_ms",
    "ts_ns": "as ts_ms",
    "forge": "what Debezium's envelope has no place for",
}
OF_ROWS = {
    "source.snapshot": "Forge does not tell the first and the last row of a snapshot from the others",
    "source.ts_ms": "each took a snapshot of its own",
    "source.ts_us": "as source.ts_ms",
    "source.ts_ns": "as source.ts_ms",
}
POSTGRES_VALUES = {
    "ttz": "time with time zone keeps its zone; the connector moves it to UTC",
    "m": "money is PostgreSQL's text, whose sign and separators are the server's",
    "p": "geometry is PostgreSQL's text; the connector has a struct",
}
POSTGRES_ROWS = {
    "source.sequence": "each took a snapshot of its own",
    "source.lsn": "as source.sequence",
    "source.txId": "the rows of a snapshot of Forge have no transaction",
    "types.after.d0": "the connector's snapshot counts BC otherwise than its stream; Forge counts as its stream",
    "types.after.dinf": "the connector's snapshot has another number than its stream; Forge has its stream's",
}
WAL = {
    "source.sequence": "the connector puts the last commit that it read in front: it depends on where it began",
    "before": "without REPLICA IDENTITY FULL it holds the key, the rest as unavailable; the connector has null",
}
LOG = {
    "source.db": "the log does not name its database",
    "source.sequence": "places in the log are no LSNs",
    "source.lsn": "as source.sequence",
    "source.ts_ms": "when the statement ran; in the WAL when it was committed",
    "source.ts_us": "as source.ts_ms",
    "source.ts_ns": "as source.ts_ms",
}
MARIADB_VALUES = {
    "u8": "the connector wraps bigint unsigned around with bigint.unsigned.handling.mode=long; Forge has the number",
    "p": "geometry is base64 of SRID and WKB; the connector has a struct",
}
MARIADB_ROWS = {
    "source.connector": "rows of a snapshot have no GTID, by which Forge tells MariaDB from MySQL",
    "types.after.ts3": "the connector's snapshot drops zeros that its stream keeps; Forge keeps them",
}
BINLOG = {
    "source.pos": "the place of the transaction, from which one can read on; the connector has that of the event in it",
    "source.row": "of a truncate, which has no row: 0; the connector repeats that of the event before",
    "types.before.tsz": "the zero timestamp is null, as in the connector's snapshot; its stream says 1970",
    "types.after.tsz": "as types.before.tsz",
}
"""What differs, field by field, and why. There is nothing else; docs/reference/wire-form.md says so too."""

END = "the_end"
Envelope = dict[str, Any]
ABSENT = "(absent)"


async def read(source: Source, after: str | None, *, snapshot: bool = False) -> tuple[list[Envelope], str]:
    """Envelopes of the whole snapshot, or of what follows the cursor up to the mark, and the cursor there."""
    found: list[Envelope] = []
    cursor = after or ""
    async with aclosing(source.snapshot() if snapshot else source.stream(after)) as batches:
        async for batch in batches:
            cursor = batch.cursor
            for change, columns in zip(batch.changes, batch.columns, strict=True):
                if change.table == END and change.op is Op.INSERT:
                    return found, cursor
                found += _encoded(change, columns)
    return found, cursor


def _encoded(change: Change, columns: tuple[Column, ...]) -> Iterable[Envelope]:
    raw = debezium.encode(change, columns=columns)
    if raw is not None and change.table != END:
        yield json.loads(raw)


def of_types(values: dict[str, str], *images: str) -> dict[str, str]:
    """The differences of some columns of the table `types`."""
    return {f"types.{image}.{name}": reason for image in images for name, reason in values.items()}


def by_table(envelopes: list[Envelope]) -> list[Envelope]:
    """Rows of a snapshot, whose tables may come in any order."""
    return sorted(envelopes, key=lambda envelope: str(envelope["source"]["table"]))


def differences(ours: list[Envelope], theirs: list[Envelope]) -> dict[str, set[tuple[str, str]]]:
    """By the path of a field, every pair of values that are not the same: ours, theirs."""
    found: dict[str, set[tuple[str, str]]] = {}
    for left, right in zip(ours, theirs, strict=True):
        where = f"{right['source']['table']}."
        for path, one, other in _unlike("", left, right):
            name = where + path if path.startswith(("before.", "after.")) else path
            found.setdefault(name, set()).add((one, other))
    return found


def _unlike(path: str, left: Any, right: Any) -> Iterable[tuple[str, str, str]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in {**left, **right}:
            inner = f"{path}.{name}" if path else name
            yield from _unlike(inner, left.get(name, ABSENT), right.get(name, ABSENT))
    elif type(left) is not type(right) or left != right:
        yield path, json.dumps(left), json.dumps(right)
