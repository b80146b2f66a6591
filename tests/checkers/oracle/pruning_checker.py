"""The checker of pruning: statement by statement, no change that matters to a query is pruned."""

import argparse
from collections.abc import Sequence

from forge.embedded import PostgresServer
from tests.checkers.checker import Finding, Outcome, search
from tests.checkers.oracle.checker import ROUNDS_PER_SECOND, OracleChecker
from tests.checkers.oracle.generate import generate
from tests.checkers.oracle.plan import Plan
from tests.checkers.oracle.pruning import check


class PruningChecker(OracleChecker):
    """Plans of the oracle with more rounds and joins, without nodes and faults."""

    name = "pruning"
    description = "Random queries and writes, statement by statement: no change that matters is pruned."

    def plan(self, options: argparse.Namespace, seed: int) -> Plan:
        rounds = max(1, round(options.seconds * ROUNDS_PER_SECOND * 3))
        return generate(seed, rounds=rounds, queries=options.queries, faults=tuple(options.faults), joins=0.5)

    def carry_out(self, plan: Plan, options: argparse.Namespace, server: PostgresServer) -> Outcome[Plan]:
        report = check(plan, server, seconds=1e9 if options.plan else options.seconds)
        return Outcome(str(report), [Finding(each.kind, str(each)) for each in report.discrepancies])

    def totals(self) -> list[str]:
        return []


def main(arguments: Sequence[str]) -> int:
    return search(PruningChecker(), arguments)
