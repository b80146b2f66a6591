"""A consumer to be killed: `python -m forge.testing.conformance.consumer MODULE:FUNCTION TEXT DIRECTORY`.

For each batch it does its side effect, a line in the file `done`, then saves the cursor in the file `cursor`, then
acknowledges it. It begins at the cursor that is saved there, and never ends by itself.
"""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from forge import wire
from forge.capture import SourceBatch, changes


def main(opener: str, text: str, directory: Path) -> None:
    module, _, function = opener.partition(":")
    open_it = getattr(importlib.import_module(module), function)
    asyncio.run(consume(open_it(text), directory))


async def consume(source: Any, directory: Path) -> None:
    saved = directory / "cursor"
    whole = (directory / "done").read_bytes()
    os.truncate(directory / "done", whole.rfind(b"\n") + 1)  # what was cut short when it was killed did not happen
    async with source:
        with (directory / "done").open("a") as done:
            async for batch in changes(source, saved.read_text() if saved.exists() else None):
                if batch.changes:
                    _line(done, _effect(batch))
                new = saved.with_suffix(".new")
                new.write_text(batch.cursor)
                new.rename(saved)
                _line(done, {"saved": batch.cursor})
                await source.ack(batch.cursor)


def _effect(batch: SourceBatch) -> dict[str, Any]:
    return {
        "changes": [{"id": change.id, "key": dict(change.key) if change.key else None} for change in batch.changes],
        "raw": [wire.encode(change).decode() for change in batch.changes],
    }


def _line(done: Any, value: dict[str, Any]) -> None:
    done.write(json.dumps(value) + "\n")
    done.flush()
    os.fsync(done.fileno())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
