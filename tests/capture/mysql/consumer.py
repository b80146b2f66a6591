"""A consumer in a process of its own: `python -m tests.capture.mysql.consumer URL FOLDER`, to be killed.

It appends the ids of each batch to `seen` and then saves the batch's cursor in `cursor`, both for good.
"""

import asyncio
import os
import sys
from contextlib import aclosing
from pathlib import Path

from forge.capture.mysql import MysqlSource


async def consume(url: str, folder: Path) -> None:
    saved = folder / "cursor"
    async with aclosing(MysqlSource(url, page=3).stream(saved.read_text())) as batches:
        with (folder / "seen").open("a") as seen:
            async for batch in batches:
                seen.write("".join(f"{change.id}\n" for change in batch.changes))
                seen.flush()
                new = folder / "cursor.new"
                new.write_text(batch.cursor)
                os.replace(new, saved)


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], Path(sys.argv[2])))
