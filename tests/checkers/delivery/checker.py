"""The delivery checker: nothing lost, doubled or out of order."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from forge.testing.postgres import temporary_postgres
from tests.checkers.checker import Checker, Finding, Outcome, postgres_binaries, search
from tests.checkers.delivery.run import Plan, run
from tests.checkers.session_settings import of_database, shown
from tests.checkers.shrink import fewer, without


class DeliveryChecker(Checker[Plan]):
    """A server of its own for each plan."""

    name = "delivery"
    description = "Consumers that die and hang, on a server that crashes: nothing is lost, every row in order."
    seconds = (6.0, 15.0)
    plan_type = Plan

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, default=2)
        parser.add_argument("--writers", type=int, default=2)
        parser.add_argument("--crashes", type=int, help="of the server in each plan (1; 2 with --long)")
        parser.add_argument("--cuts", type=int, default=2, help="of the network, every other a long silence (2)")
        parser.add_argument("--hangs", type=int, default=1, help="of nodes (SIGSTOP) for longer than their lease (1)")
        parser.add_argument("--broken", action="store_true", help="with a worker that is wrong on purpose")

    def plan(self, options: argparse.Namespace, seed: int) -> Plan:
        if options.crashes is None:
            options.crashes = 2 if options.long else 1
        return Plan(
            seed,
            options.seconds,
            options.nodes,
            options.writers,
            crashes=options.crashes,
            cuts=options.cuts,
            hangs=options.hangs,
            broken=options.broken,
        )

    @contextmanager
    def running(self, options: argparse.Namespace) -> Iterator[Callable[[Plan], Outcome[Plan]]]:
        def carry_out(plan: Plan) -> Outcome[Plan]:
            with temporary_postgres(bin=postgres_binaries(options)) as server:
                report = run(plan, server)
            findings = [Finding("wrong", each) for each in report.wrong]
            return Outcome(str(report), findings, [f"settings: {shown(of_database(plan.seed))}"])

        yield carry_out

    def candidates(self, plan: Plan) -> Iterator[Plan]:
        yield from fewer(plan, crashes=0, cuts=0, hangs=0, nodes=1, writers=1, deaths=0)
        for kinds in without(plan.kinds):
            if kinds:
                yield msgspec.structs.replace(plan, kinds=tuple(kinds))

    def announce(self, plan: Plan) -> str:
        return (
            f"seed {plan.seed}: {plan.nodes} nodes, {plan.writers} writers, {plan.crashes} crashes, {plan.cuts} cuts,"
            f" {plan.hangs} hangs, {len(plan.kinds)} kinds of consumers"
        )


def main(arguments: Sequence[str]) -> int:
    return search(DeliveryChecker(), arguments)
