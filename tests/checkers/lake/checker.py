"""The checker of the pipeline: the lake is the database, whenever its keeper is killed."""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from forge.pipeline.session import session
from forge.testing.postgres import available_versions, temporary_postgres
from tests.checkers.checker import Checker, Finding, Outcome, postgres_binaries, search
from tests.checkers.lake.keeper import QUICK
from tests.checkers.lake.run import Plan, run
from tests.checkers.session_settings import of_database, shown
from tests.checkers.shrink import fewer, without


class LakeChecker(Checker[Plan]):
    """One server and one Spark for all plans."""

    name = "lake"
    description = "Kill the pipeline at random points and look at the lake."
    plan_type = Plan

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kills", type=int, default=3, help="of the keeper in each plan (3)")
        parser.add_argument("--transactions", type=int, default=150, help="before each kill (150)")
        parser.add_argument("--no-definitions", action="store_true", help="no ALTER TABLE")

    def plan(self, options: argparse.Namespace, seed: int) -> Plan:
        return Plan.generate(
            seed, kills=options.kills, transactions=options.transactions, definitions=not options.no_definitions
        )

    @contextmanager
    def running(self, options: argparse.Namespace) -> Iterator[Callable[[Plan], Outcome[Plan]]]:
        versions, numbers = available_versions(), count()
        spark = session(master="local[2]", conf=QUICK, app="forge testing")
        try:
            with (
                temporary_postgres(bin=postgres_binaries(options) or versions[max(versions)]) as server,
                tempfile.TemporaryDirectory() as folder,
            ):

                def carry_out(plan: Plan) -> Outcome[Plan]:
                    own = Path(folder, str(next(numbers)))
                    own.mkdir()
                    report = run(plan, server, spark, own)
                    findings = [Finding("discrepancy", each) for each in report.discrepancies]
                    return Outcome(str(report), findings, [f"settings: {shown(of_database(plan.seed))}"])

                yield carry_out
        finally:
            spark.stop()

    def candidates(self, plan: Plan) -> Iterator[Plan]:
        for kills in without(plan.kills):
            yield msgspec.structs.replace(plan, kills=tuple(kills))
        if plan.definitions:
            yield msgspec.structs.replace(plan, definitions=False)
        yield from fewer(plan, transactions=1)

    def announce(self, plan: Plan) -> str:
        return plan.summary()


def main(arguments: Sequence[str]) -> int:
    return search(LakeChecker(), arguments)
