"""pgqueuer drains a backlog of its own: `python pgqueuer_drain.py URL JOBS BATCH` prints jobs a second. It is run by
`benchmarks.outbox` with pgqueuer's directory in PYTHONPATH, and imports nothing of Forge."""

import asyncio
import sys
from time import perf_counter

import psycopg
from pgqueuer import QueueManager  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.db import AsyncpgDriver, PsycopgDriver  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.queries import Queries  # type: ignore[import-not-found,unused-ignore]


async def main(url: str, jobs: int, batch: int) -> float:
    try:
        import asyncpg  # type: ignore[import-not-found,import-untyped,unused-ignore]

        driver = AsyncpgDriver(await asyncpg.connect(url))
    except ImportError:
        driver = PsycopgDriver(await psycopg.AsyncConnection.connect(url, autocommit=True))
    queries = Queries(driver)
    await queries.install()
    await queries.enqueue(["bench"] * jobs, [b"{}"] * jobs, [0] * jobs)
    manager = QueueManager(queries)
    left = jobs
    end = 0.0

    @manager.entrypoint("bench")  # type: ignore[untyped-decorator,unused-ignore]
    async def handle(job: object) -> None:
        nonlocal left, end
        left -= 1
        if not left:
            end = perf_counter()
            manager.shutdown.set()

    start = perf_counter()
    await manager.run(batch_size=batch)
    return jobs / (end - start)


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
