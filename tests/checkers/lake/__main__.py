"""The checker of the pipeline from the command line; exit 0 when the lake kept its word, 1 otherwise."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from forge.pipeline.session import session
from forge.testing.postgres import available_versions, temporary_postgres
from tests.checkers.lake.keeper import QUICK
from tests.checkers.lake.run import Plan, run
from tests.checkers.session_settings import of_database, shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.checkers.lake", description="Kill the pipeline at random points and look at the lake."
    )
    parser.add_argument("--seed", type=int, help="the first seed; random unless given")
    parser.add_argument("--kills", type=int, default=3, help="how often the keeper is killed in a round")
    parser.add_argument("--transactions", type=int, default=150, help="transactions before each kill")
    parser.add_argument("--no-definitions", action="store_true", help="no ALTER TABLE")
    parser.add_argument("--long", action="store_true", help="round after round")
    parser.add_argument("--minutes", type=float, default=10, help="how long --long goes on")
    parser.add_argument("--keep-going", action="store_true", help="go on after a discrepancy")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * options.minutes
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    failed = rounds = 0
    spark = session(master="local[2]", conf=QUICK, app="forge testing")
    versions = available_versions()
    with temporary_postgres(bin=versions[max(versions)]) as server, tempfile.TemporaryDirectory() as folder:
        while True:
            plan = Plan.generate(
                seed, kills=options.kills, transactions=options.transactions, definitions=not options.no_definitions
            )
            print(plan.summary(), flush=True)
            report = run(plan, server, spark, Path(folder))
            rounds += 1
            print(f"  {report}", flush=True)
            if report.discrepancies:
                print(f"  settings: {shown(of_database(plan.seed))}")
            for discrepancy in report.discrepancies:
                print(f"  {discrepancy}", flush=True)
            failed += bool(report.discrepancies)
            seed += 1
            if not options.long or time.monotonic() > deadline or (failed and not options.keep_going):
                break
    spark.stop()
    print(f"{rounds} rounds, {failed} with discrepancies")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
