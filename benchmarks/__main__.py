"""The command: `python -m benchmarks`."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import (
    browser,
    bulk,
    cache,
    consumers,
    fanout,
    feed_grid,
    feeds,
    lake_flow,
    lake_growth,
    lake_source,
    lake_versions,
    latency,
    live_latency,
    matching,
    memory,
    mongo,
    mysql,
    outbox,
    polling,
    pruning,
    query_bus,
    queues,
    reading,
    report,
    sqlite,
    subscribers,
    track,
    transactions,
    versions,
    wal,
    webhooks,
)
from benchmarks.bench import RESULTS, Bench, running
from benchmarks.figures import Figure

BENCHMARKS: dict[str, Callable[[Bench], list[Figure]]] = {
    "bulk": bulk.run,
    "transactions": transactions.run,
    "reading": reading.run,
    "latency": latency.run,
    "polling": polling.run,
    "memory": memory.run,
    "matching": matching.run,
    "live_latency": live_latency.run,
    "fanout": fanout.run,
    "feed_grid": feed_grid.run,
    "subscribers": subscribers.run,
    "pruning": pruning.run,
    "browser": browser.run,
    "cache": cache.run,
    "query_bus": query_bus.run,
    "queues": queues.run,
    "track": track.run,
    "consumers": consumers.run,
    "webhooks": webhooks.run,
    "outbox": outbox.run,
    "lake_source": lake_source.run,
    "lake_flow": lake_flow.run,
    "lake_growth": lake_growth.run,
    "lake_versions": lake_versions.run,
    "versions": versions.run,
    "wal": wal.run,
    "mysql": mysql.run,
    "sqlite": sqlite.run,
    "mongo": mongo.run,
    "feeds": feeds.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, keep; always 0 when measuring worked, whether or not a target is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Forge's speed.")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md and its charts")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server goes too
    console = Console(stderr=True)
    with console.status("starting PostgreSQL") as status:

        def say(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                print(text, file=sys.stderr, flush=True)

        with running(quick=options.quick, say=say) as bench:
            found = [figure for name in options.only or BENCHMARKS for figure in BENCHMARKS[name](bench)]
            run = report.Run(
                datetime.now(UTC).replace(microsecond=0), report.machine(), bench.server.version, options.quick, found
            )
    report.print_table(run)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for file in (RESULTS / f"{run.at:%Y%m%dT%H%M%SZ}.json", *([options.json] if options.json else [])):
        file.write_bytes(report.encoded(run))
    if options.write_docs:
        report.write_docs(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
