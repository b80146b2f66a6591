"""The delivery checker, for a short while; `make chaos` runs it for long."""

import pytest

from forge.testing import temporary_postgres
from tests.checkers.delivery.run import Plan, Report, run


def carried_out(plan: Plan) -> Report:
    with temporary_postgres() as server:
        return run(plan, server)


@pytest.mark.parametrize(("seed", "kinds"), [(7, ("single", "exact")), (11, ("poisoned", "sharded"))])
@pytest.mark.contract("X1", "W12", "W13")
def test_nothing_is_lost_or_out_of_order_when_workers_and_the_server_die(seed: int, kinds: tuple[str, ...]) -> None:
    report = carried_out(Plan(seed, seconds=3.0, writers=1, kinds=kinds))
    assert report.wrong == []
    assert report.changes > 20
    assert sum(report.deaths.values()) >= 4


def test_the_checker_notices_a_worker_that_saves_before_the_side_effect() -> None:
    plan = Plan(
        3, seconds=1.0, nodes=1, writers=1, crashes=0, deaths=2, points=("before",), kinds=("single",), broken=True
    )
    report = carried_out(plan)
    assert any("is lost" in line for line in report.wrong)
