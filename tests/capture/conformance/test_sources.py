"""The suite on real servers: the trigger log and the WAL of PostgreSQL, and MariaDB's binary log.

SQLite's and MongoDB's own tests run it on theirs.
"""

import asyncio
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from forge.testing.conformance import Check, Opening, checks, conform, name, outcome
from forge.testing.conformance.faults import check_half_open_connections
from forge.testing.mariadb import mariadb_missing

KINDS = ("log", "wal", "mysql")
CONTRACTS = {
    **dict.fromkeys(("filters", "filters in feed", "status"), "W9"),
    **dict.fromkeys(("now", "resume", "replay", "durable", "expired cursor", "killed consumer"), "W12"),
}
Serve = Callable[[str], Opening]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """What makes databases of a kind; its server is started when first asked for."""
    running: dict[str, Opening] = {}
    with ExitStack() as stack:

        def start(kind: str) -> Opening:
            if kind == "mysql" and (missing := mariadb_missing()):
                pytest.skip(missing)
            if kind not in running:
                module = importlib.import_module(f"forge.testing.conformance.{kind}")
                running[kind] = stack.enter_context(module.serving())
            return running[kind]

        yield start


def each() -> Iterator[object]:
    for kind in KINDS:
        for check in checks():
            if check is not check_half_open_connections:
                contract = CONTRACTS.get(name(check))
                marks = [pytest.mark.contract(contract)] if contract else []
                yield pytest.param(kind, check, id=f"{kind}-{name(check)}", marks=marks)


@pytest.mark.parametrize(("kind", "check"), list(each()))
async def test_it_conforms(kind: str, check: Check, serve: Serve) -> None:
    async with serve(kind)() as adapter:
        await conform(check, adapter)


@pytest.mark.contract("W12")
async def test_connections_that_fall_silent_are_given_up(serve: Serve) -> None:
    """All at once: it takes as long as a source waits for a sign of life."""
    found = await asyncio.gather(*(outcome(serve(kind), check_half_open_connections) for kind in KINDS))
    assert [each.result for each in found] == ["passed"] * len(KINDS), [each.why for each in found]
