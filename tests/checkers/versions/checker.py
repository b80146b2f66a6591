"""The model test of change versions: every mirror is the source."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import msgspec

from forge.testing.postgres import temporary_postgres
from tests.checkers.checker import Checker, Finding, Outcome, postgres_binaries, search
from tests.checkers.session_settings import of_database, shown
from tests.checkers.shrink import fewer, without
from tests.checkers.versions.plan import Mistake, Plan
from tests.checkers.versions.run import run


class VersionsChecker(Checker[Plan]):
    """A server of its own for each plan."""

    name = "versions"
    description = "Writers, clients that poll windows, and strategies that change: every mirror is the source."
    seconds = (10.0, 10.0)
    plan_type = Plan

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--writers", type=int, default=4)
        parser.add_argument("--clients", type=int, default=6, help="of which half have a subject (6)")
        parser.add_argument("--crashes", type=int, default=1, help="of the server in every second plan (1)")
        parser.add_argument("--mistake", choices=get_args(Mistake), help="with something that is wrong on purpose")

    def plan(self, options: argparse.Namespace, seed: int) -> Plan:
        return Plan(
            seed,
            options.seconds,
            options.writers,
            options.clients,
            triggers=seed % 2 == 0,
            crashes=options.crashes if seed % 4 < 2 else 0,
            mistake=options.mistake,
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
        yield from fewer(plan, crashes=0, writers=1, clients=1)
        if plan.triggers:
            yield msgspec.structs.replace(plan, triggers=False)
        for strategies in without(plan.strategies):
            if strategies:
                yield msgspec.structs.replace(plan, strategies=tuple(strategies))
        yield from fewer(plan, keys=1)

    def announce(self, plan: Plan) -> str:
        return (
            f"seed {plan.seed}: {plan.writers} writers, {plan.clients} clients, {plan.crashes} crashes,"
            f" {len(plan.strategies)} strategies, {plan.keys} keys{', triggers' if plan.triggers else ''}"
        )


def main(arguments: Sequence[str]) -> int:
    return search(VersionsChecker(), arguments)
