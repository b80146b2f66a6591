"""A reader that is made to be killed: follows the log, writes each batch down, then saves its cursor.

Comes in: a directory with `task.json`. Goes out there: `records` (one line for each batch, see `model.line`) and
`cursor` (replaced whole). It resumes at the saved cursor, so at most one batch is written down twice, and only
across lives. It ends when its parent does.

The kind `sequence` is wrong on purpose: it remembers the greatest id that it saw, as one would with a serial
number. It is there to prove that the checker notices.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from forge.changelog.follow import follow
from forge.changelog.reader import Reader
from forge.cursor import Cursor
from forge.errors import ServerError
from tests.checkers.history.model import Record, line, log_id
from tests.checkers.history.plan import ReaderPlan

PATIENCE = 20.0
"""Seconds in which a new life may find no server."""
TASK, RECORDS, CURSOR, RUNS = "task.json", "records", "cursor", "runs"


class Task(msgspec.Struct, frozen=True):
    """What a reader process is told."""

    url: str
    begin: str
    plan: ReaderPlan


async def main(directory: Path) -> None:
    """Follow until killed."""
    task = msgspec.json.decode((directory / TASK).read_bytes(), type=Task)
    saved = directory / CURSOR
    stands = saved.read_text() if saved.exists() else task.begin
    run = _count(directory / RUNS)
    threading.Thread(target=_end_with_parent, args=[os.getppid()], daemon=True).start()
    out = os.open(directory / RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if run > 1:
        os.write(out, b"\n")
    batches = _follow if task.plan.kind == "follow" else _follow_ids
    async for record in batches(task, stands, run):
        _write(out, line(record))
        if task.plan.linger:
            await asyncio.sleep(task.plan.linger / 1000)
        fresh = saved.with_suffix(".new")
        fresh.write_text(record.end)
        fresh.replace(saved)


async def _follow(task: Task, stands: str, run: int) -> AsyncIterator[Record]:
    cursor = Cursor.parse(stands)
    patience = time.monotonic() + PATIENCE
    while True:
        plan = task.plan
        batches = follow(task.url, after=cursor, tables=plan.tables, wakeup=plan.wakeup, durable=plan.durable)
        try:
            async for batch in batches:
                yield Record(run, str(cursor), str(batch.cursor), tuple(batch.changes))
                cursor, patience = batch.cursor, 0
        except ServerError:  # the very first connection is not tried twice
            if time.monotonic() > patience:
                raise
            await asyncio.sleep(0.1)


async def _follow_ids(task: Task, stands: str, run: int) -> AsyncIterator[Record]:
    """What must not be done: a commit that comes later than that of a greater id is never seen."""
    last = int(stands) if stands.isdigit() else 0
    async with Reader.open(task.url) as reader:
        while True:
            async for batch in reader.read(reader.start(), tables=task.plan.tables):
                fresh = sorted((c for c in batch.changes if log_id(c) > last), key=log_id)
                if fresh:
                    top = log_id(fresh[-1])
                    yield Record(run, stands, str(top), tuple(fresh))
                    last, stands = top, str(top)
            await asyncio.sleep(0.005)


def _write(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]


def _count(path: Path) -> int:
    run = int(path.read_text()) + 1 if path.exists() else 1
    fresh = path.with_suffix(".new")
    fresh.write_text(str(run))
    fresh.replace(path)
    return run


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
