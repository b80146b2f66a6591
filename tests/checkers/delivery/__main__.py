"""The delivery checker from the command line; exit 0 when nothing was lost, doubled or out of order, 1 otherwise."""

import argparse
import random
import sys
import time
from collections.abc import Sequence

from forge.testing.postgres import temporary_postgres
from tests.checkers.delivery.run import Plan, run
from tests.checkers.session_settings import of_database, shown

SHOWN = 12


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkers.delivery", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first run; random unless given")
    parser.add_argument("--seconds", type=float, help="of writing in each run (6; 15 with --long)")
    parser.add_argument("--long", action="store_true", help="go on with the next seeds")
    parser.add_argument("--minutes", type=float, default=10, help="how long, with --long (10)")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--crashes", type=int, help="of the server in each run (1; 2 with --long)")
    parser.add_argument("--cuts", type=int, default=2, help="of the network, every other a long silence (2)")
    parser.add_argument("--hangs", type=int, default=1, help="of nodes (SIGSTOP) for longer than their lease (1)")
    parser.add_argument("--broken", action="store_true", help="with a worker that is wrong on purpose")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    deadline = time.monotonic() + 60 * options.minutes
    failed = False
    while not failed:
        plan = Plan(
            seed,
            options.seconds or (15.0 if options.long else 6.0),
            options.nodes,
            options.writers,
            crashes=options.crashes if options.crashes is not None else 2 if options.long else 1,
            cuts=options.cuts,
            hangs=options.hangs,
            broken=options.broken,
        )
        with temporary_postgres() as server:
            report = run(plan, server)
        print(report, flush=True)
        if report.wrong:
            print(f"  settings: {shown(of_database(plan.seed))}")
        for line in report.wrong[:SHOWN]:
            print(f"  {line}")
        failed = bool(report.wrong)
        seed += 1
        if not options.long or time.monotonic() > deadline:
            break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
