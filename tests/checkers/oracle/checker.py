"""The oracle of live queries: every subscriber holds what PostgreSQL answers."""

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from forge.embedded import PostgresServer
from forge.testing.postgres import temporary_postgres
from tests.checkers.checker import Checker, Finding, Outcome, postgres_binaries, search
from tests.checkers.oracle.candidates import candidates, until
from tests.checkers.oracle.generate import generate
from tests.checkers.oracle.plan import FAULTS, Plan
from tests.checkers.oracle.run import SETTINGS, run

ROUNDS_PER_SECOND = 5
REASONS = 5


class OracleChecker(Checker[Plan]):
    """One server for all plans."""

    name = "oracle"
    description = "Random schemas, queries, writes and faults: every subscriber ends with PostgreSQL's answer."
    seconds = (8.0, 8.0)
    plan_type = Plan

    def __init__(self) -> None:
        self._asks = 0
        self._refused: Counter[str] = Counter()

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--queries", type=int, default=16, help="in each plan (16)")
        parser.add_argument(
            "--faults", nargs="*", default=list(FAULTS), choices=FAULTS, metavar="FAULT", help="of " + ", ".join(FAULTS)
        )
        parser.add_argument("--patience", type=float, default=20.0, help="seconds for nodes to settle (20)")

    def plan(self, options: argparse.Namespace, seed: int) -> Plan:
        rounds = max(1, round(options.seconds * ROUNDS_PER_SECOND))
        return generate(seed, rounds=rounds, queries=options.queries, faults=tuple(options.faults), joins=0.1)

    @contextmanager
    def running(self, options: argparse.Namespace) -> Iterator[Callable[[Plan], Outcome[Plan]]]:
        for name in ("forge", "psycopg.pool"):
            logging.getLogger(name).setLevel(logging.WARNING if options.verbose else logging.CRITICAL)
        with temporary_postgres(bin=postgres_binaries(options), settings=SETTINGS) as server:
            yield lambda plan: self.carry_out(plan, options, server)

    def carry_out(self, plan: Plan, options: argparse.Namespace, server: PostgresServer) -> Outcome[Plan]:
        seconds = 1e9 if options.plan else options.seconds
        report = run(plan, server, seconds=seconds, patience=options.patience)
        self._asks += report.asks
        self._refused.update(report.refused)
        return Outcome(
            str(report),
            [Finding(each.kind, str(each)) for each in report.discrepancies],
            [
                *plan.sessions().splitlines(),
                f"refused: {report.refused}",
                f"errors: {report.errors}",
                f"faults: {', '.join(report.faults)}",
            ],
            [until(plan, each.round, each.ask) for each in report.discrepancies[:1]],
        )

    def candidates(self, plan: Plan) -> Iterator[Plan]:
        return candidates(plan)

    def announce(self, plan: Plan) -> str:
        return plan.summary()

    def totals(self) -> list[str]:
        common = [f"  {count} {reason}" for reason, count in self._refused.most_common(REASONS)]
        return [f"{self._refused.total()} of {self._asks} asks refused:", *common]


def main(arguments: Sequence[str]) -> int:
    return search(OracleChecker(), arguments)
