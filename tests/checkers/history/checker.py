"""The history checker: nothing lost, nothing doubled."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from forge.testing.postgres import temporary_postgres
from tests.checkers.checker import Checker, Finding, Outcome, postgres_binaries, search
from tests.checkers.history.candidates import candidates
from tests.checkers.history.plan import FAULTS, Plan, generate
from tests.checkers.history.run import SETTINGS, run
from tests.checkers.history.tables import TABLES


class HistoryChecker(Checker[Plan]):
    """A server of its own for each plan."""

    name = "history"
    description = "Random histories with faults: no change is lost, none is doubled."
    seconds = (6.0, 12.0)  # long enough for a hung pacemaker to lose its lock
    plan_type = Plan

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--writers", type=int, default=5)
        parser.add_argument("--readers", type=int, default=3)
        parser.add_argument("--rate", type=float, default=16.0, help="transactions per second and writer (16)")
        parser.add_argument(
            "--faults", nargs="*", default=list(FAULTS), choices=FAULTS, metavar="FAULT", help="of " + ", ".join(FAULTS)
        )
        parser.add_argument(
            "--tables", nargs="*", default=[], choices=TABLES, metavar="TABLE", help=f"of {', '.join(TABLES)}"
        )
        parser.add_argument("--patience", type=float, default=30.0, help="seconds for readers to catch up (30)")

    def plan(self, options: argparse.Namespace, seed: int) -> Plan:
        return generate(
            seed,
            seconds=options.seconds,
            writers=options.writers,
            readers=options.readers,
            faults=tuple(options.faults),
            rate=options.rate,
            tables=options.tables,
        )

    @contextmanager
    def running(self, options: argparse.Namespace) -> Iterator[Callable[[Plan], Outcome[Plan]]]:
        def carry_out(plan: Plan) -> Outcome[Plan]:
            with temporary_postgres(bin=postgres_binaries(options), settings=SETTINGS) as server:
                report = run(plan, server, patience=options.patience)
            return Outcome(
                str(report),
                [Finding(each.kind, str(each)) for each in report.discrepancies],
                [*plan.sessions().splitlines(), f"errors: {report.errors}", f"faults: {'; '.join(report.faults)}"],
            )

        yield carry_out

    def candidates(self, plan: Plan) -> Iterator[Plan]:
        return candidates(plan)

    def announce(self, plan: Plan) -> str:
        return plan.summary()


def main(arguments: Sequence[str]) -> int:
    return search(HistoryChecker(), arguments)
