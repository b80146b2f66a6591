"""The model test of change versions, for a short while; `python -m tests.checkers versions --long` runs it for long."""

import pytest

from forge.embedded import PostgresServer
from forge.testing import temporary_postgres
from forge.versions.strategies import Strategy
from tests.checkers.versions.plan import Mistake, Plan
from tests.checkers.versions.run import run


@pytest.mark.parametrize("triggers", [False, True], ids=["application", "trigger"])
@pytest.mark.contract("V1", "V4", "V5", "V6", "V8")
def test_every_client_has_the_source_whoever_writes_and_however_late_they_commit(
    server: PostgresServer, triggers: bool
) -> None:
    report = run(Plan(7, seconds=1.5, least=60, triggers=triggers), server)
    assert report.wrong == []
    assert min(report.commits, report.windows, report.told, report.grants, report.strategies) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.contract("V4", "V5", "V8")
def test_every_client_has_the_source_though_the_server_crashes(seed: int) -> None:
    with temporary_postgres() as server:
        report = run(Plan(seed, seconds=15.0, writers=4, clients=6, triggers=bool(seed % 2), crashes=2), server)
    assert report.wrong == []
    assert min(report.commits, report.windows, report.told, report.strategies) > 0


@pytest.mark.contract("V5")
def test_the_sequences_last_value_as_newest_is_noticed(server: PostgresServer) -> None:
    """The mistake that this kind of system is known for."""
    report = run(Plan(4, seconds=20.0, clients=2, strategies=("journal",), mistake="last_value"), server)
    symptoms = ("was told as the newest", "and the client has")  # whoever looks first ends the run
    assert any(symptom in line for line in report.wrong for symptom in symptoms), report.wrong


@pytest.mark.long
@pytest.mark.parametrize(
    ("mistake", "noticed"),
    [
        ("last_value", "and the client has"),
        ("xmax", "was told as the newest"),
        ("early", "leads elsewhere than the next one begins"),
        ("carry", "does not contain that of"),
        ("monotonic", "the mirror is not the source"),
        ("journal", "are not those of the journals"),
        ("grant", "and the client has None"),
        ("revoke", "which is no more"),
    ],
)
def test_mistakes_are_noticed(server: PostgresServer, mistake: Mistake, noticed: str) -> None:
    strategy: Strategy = "monotonic" if mistake == "monotonic" else "journal"
    wrong: list[str] = []
    for seed in range(10):
        wrong += run(Plan(seed, seconds=10.0, strategies=(strategy,), mistake=mistake), server).wrong
        if any(noticed in line for line in wrong):
            return
    pytest.fail(f"nobody noticed {mistake}: {wrong[:5]}")
