"""The model test of change versions from the command line; exit 0 when every mirror is the source, 1 otherwise."""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import get_args

from forge.testing.postgres import temporary_postgres
from tests.checkers.session_settings import of_database, shown
from tests.checkers.versions.plan import Mistake, Plan
from tests.checkers.versions.run import run

SHOWN = 12


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkers.versions", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first run; random unless given")
    parser.add_argument("--seconds", type=float, default=10.0, help="of writing in each run (10)")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with the next seeds for so long (0: one run)")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=6, help="of which half have a subject (6)")
    parser.add_argument("--crashes", type=int, default=1, help="of the server in every second run (1)")
    parser.add_argument("--mistake", choices=get_args(Mistake), help="with something that is wrong on purpose")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    deadline = time.monotonic() + 60 * options.minutes
    while True:
        plan = Plan(
            seed,
            options.seconds,
            options.writers,
            options.clients,
            triggers=seed % 2 == 0,
            crashes=options.crashes if seed % 4 < 2 else 0,
            mistake=options.mistake,
        )
        with temporary_postgres() as server:
            report = run(plan, server)
        print(report, flush=True)
        if report.wrong:
            print(f"  settings: {shown(of_database(plan.seed))}")
        for line in report.wrong[:SHOWN]:
            print(f"  {line}")
        if report.wrong or time.monotonic() > deadline:
            return 1 if report.wrong else 0
        seed += 1


if __name__ == "__main__":
    sys.exit(main())
