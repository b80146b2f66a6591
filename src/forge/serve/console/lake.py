"""`forge.pipeline`: the progress of the local lake, its last batches, and the sizes of its tables.

The lake is read from its files, only on the local disk; for a remote lake, use `forge pipeline status`. Whether the
lake equals the database is the result of the last comparison: `forge pipeline verify`, or a run with `--verify`.
"""

import contextlib
import heapq
import re
import threading
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from forge.cursor import Cursor
from forge.deliver.consumers.lag import lag_of, lag_values
from forge.deliver.consumers.sql import sql
from forge.errors import ForgeError
from forge.postgres.connection import Connection
from forge.react.database import QueryContext
from forge.serve.console.console_context import Desk, utc
from forge.serve.console.delta import DeltaFile, DeltaTable

EVERY: Final = 3.0
RECENT: Final = 20
RUN: Final = 10**10
"""The batches of a run are numbered from its number times this value: see `forge.pipeline.bronze`."""
_BATCH: Final = ["batch", "run", "cursor", "changes", "quarantined", "tables", "newest", "seconds", "at"]


class _Ledger(msgspec.Struct):
    """The content of the lake's own tables."""

    batches: int
    changes: int
    recent: list[dict[str, Any]]
    cursor: Cursor | None
    mirrored: list[str]
    checks: dict[int, tuple[bool, datetime]]
    tables: list[dict[str, Any]]


class ConsoleLake:
    """A lake in a folder; reads of its tables continue at the last position, in one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, DeltaTable] = {}
        self._one = threading.Lock()

    def look(self) -> _Ledger:
        """Return the current content."""
        with self._one:
            return self._look()

    def _look(self) -> _Ledger:
        batches = self._table("batches")
        files = batches.files()
        rows = sorted(batches.rows(_BATCH, _newest(files)), key=lambda row: row["batch"], reverse=True)[:RECENT]
        about = self._table("about")
        runs = sorted(about.rows(["run", "tables"], about.files()), key=lambda row: row["run"])
        mirrored = (runs[-1]["tables"] or "") if runs else ""
        checks = self._table("checks")
        return _Ledger(
            batches=sum(file.rows for file in files),
            changes=sum(file.rows for file in self._table("bronze/changes").files()),
            recent=rows,
            cursor=Cursor.parse(rows[0]["cursor"]) if rows else None,
            mirrored=[name.strip() for name in mirrored.split(",") if name.strip()],
            checks={
                row["batch"]: (row["equal"], row["at"])
                for row in checks.rows(["batch", "equal", "at"], _newest(checks.files()))
            },
            tables=self._tables(),
        )

    def _tables(self) -> list[dict[str, Any]]:
        quarantine = self._table("silver/quarantine")
        misfits = Counter(
            f"{row['schema']}.{row['table']}" for row in quarantine.rows(["schema", "table"], quarantine.files())
        )
        found = []
        for place in sorted((self._folder / "silver/current").glob("*")):
            current = self._table(f"silver/current/{place.name}").files()
            history = self._table(f"silver/history/{place.name}").files()
            found.append(
                {
                    "name": _name(place.name),
                    "current_rows": sum(file.rows for file in current),
                    "history_rows": sum(file.rows for file in history),
                    "bytes": sum(file.bytes for file in (*current, *history)),
                    "files": len(current) + len(history),
                    "quarantined": misfits[_name(place.name)],
                }
            )
        return found

    def _table(self, name: str) -> DeltaTable:
        return self._known.setdefault(name, DeltaTable(self._folder / name))


def register(desk: Desk) -> None:
    path = desk.node.options.lake
    lake = None if path is None else _local(path)

    async def pipeline(ctx: QueryContext) -> dict[str, Any] | None:
        """The progress of the lake, its last batches, and the sizes of its tables."""
        if path is None:
            return None
        if lake is None:
            problem = f"{path} is not on this machine; forge pipeline status tells of it"
            return {**_told(path, None, None), "state": "unreadable", "problems": [problem]}
        try:
            found = await desk.thread(lake.look, "console lake")
        except (ForgeError, OSError, msgspec.MsgspecError) as error:
            fix = f" (fix: {error.fix})" if isinstance(error, ForgeError) else ""
            return {**_told(path, None, None), "state": "unreadable", "problems": [f"{error}{fix}"]}
        lag = None
        if (cursor := found.cursor) is not None:
            values = lag_values(cursor, found.mirrored)

            def look(connection: Connection) -> Any:
                return lag_of(connection.execute(sql("lag"), values).fetchall()[0])

            lag = await desk.ask(look)
        return _told(path, found, lag)

    desk.query(pipeline, "forge.pipeline", every=EVERY)


def _told(path: str, found: _Ledger | None, lag: Any) -> dict[str, Any]:
    recent = [] if found is None else [_batch(row, found.checks.get(row["batch"])) for row in found.recent]
    checked = max(found.checks.values(), key=lambda each: each[1]) if found is not None and found.checks else None
    tables = [] if found is None else found.tables
    return {
        "lake": path,
        "state": "ok" if recent else "empty",
        "batches": 0 if found is None else found.batches,
        "changes": 0 if found is None else found.changes,
        "last_batch": recent[0]["batch"] if recent else None,
        "last_at": recent[0]["at"] if recent else None,
        "lag_seconds": None if lag is None else round(lag.seconds, 1),
        "lag_events": None if lag is None else lag.events,
        "equal": None if checked is None else checked[0],
        "compared_at": None if checked is None else utc(checked[1]),
        "problems": [_misfits(each["name"], each["quarantined"]) for each in tables if each["quarantined"]],
        "tables": tables,
        "recent": recent,
    }


def _misfits(table: str, rows: int) -> str:
    words, are = ("row", "is") if rows == 1 else ("rows", "are")
    return f"{rows:,} {words} of {table} did not fit and {are} in quarantine"


def _batch(row: dict[str, Any], checked: tuple[bool, datetime] | None) -> dict[str, Any]:
    at, newest = row["at"], row["newest"]
    return {
        "batch": f"{row['run']}.{row['batch'] - row['run'] * RUN}",
        "at": utc(at),
        "changes": row["changes"],
        "quarantined": row["quarantined"],
        "tables": len(msgspec.json.decode(row["tables"])),
        "seconds": round(row["seconds"], 2),
        "lag_seconds": None if newest is None else round(max(0.0, (at - newest).total_seconds()), 1),
        "equal": None if checked is None else checked[0],
    }


def _newest(files: Iterable[DeltaFile]) -> list[DeltaFile]:
    """Return the files with the newest batches; Delta records the greatest number of each file."""
    return heapq.nlargest(RECENT, files, key=lambda file: file.most.get("batch", 0))


def _local(path: str) -> ConsoleLake | None:
    """Return the lake if it is on this machine."""
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    return None if "://" in path else ConsoleLake(Path(path).expanduser())


def _name(folder: str) -> str:
    """Return the table of a lake folder: see `forge.pipeline.lake.folder`.

    >>> _name("public.orders"), _name("a~2fb~20~7e~c3~bc")
    ('public.orders', 'a/b ~ü')
    """
    with contextlib.suppress(UnicodeDecodeError):
        return re.sub(r"(?:~[0-9a-f]{2})+", lambda found: bytes.fromhex(found[0].replace("~", "")).decode(), folder)
    return folder
