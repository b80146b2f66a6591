"""The suite on real servers: the trigger log and the WAL of PostgreSQL, and MariaDB's binary log.

The tests of SQLite and MongoDB run it on theirs.
"""

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from forge import debezium
from forge.change import same
from forge.testing.conformance import Check, Delete, Insert, Opening, Update, checks, conform, name, outcome
from forge.testing.conformance.faults import check_half_open_connections
from forge.testing.conformance.operations import TYPES
from forge.testing.conformance.reading import listening
from forge.testing.mariadb import mariadb_missing

KINDS = ("log", "wal", "mysql")
CONTRACTS = {
    **dict.fromkeys(("filters", "filters in feed", "status"), "W9"),
    **dict.fromkeys(("now", "resume", "replay", "durable", "expired cursor", "killed consumer"), "W12"),
}
ELSEWHERE = (("wal", "killed consumer"), ("mysql", "killed consumer"))
"""Checks that start processes again and again, of what tests of the source's own show too."""
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
                module = importlib.import_module(f"tests.checkers.conformance.{kind}")
                running[kind] = stack.enter_context(module.serving())
            return running[kind]

        yield start


def each() -> Iterator[object]:
    for kind in KINDS:
        for check in checks():
            if check is not check_half_open_connections:
                contract = CONTRACTS.get(name(check))
                marks = [pytest.mark.contract(contract)] if contract else []
                marks += (
                    [pytest.mark.long] if name(check) == "slow consumer" or (kind, name(check)) in ELSEWHERE else []
                )
                yield pytest.param(kind, check, id=f"{kind}-{name(check)}", marks=marks)


@pytest.mark.parametrize(("kind", "check"), list(each()))
async def test_it_conforms(kind: str, check: Check, serve: Serve) -> None:
    async with serve(kind)() as adapter:
        await conform(check, adapter)


@pytest.mark.contract("W15")
@pytest.mark.parametrize(("kind", "connector"), [("log", "postgresql"), ("wal", "postgresql"), ("mysql", "mariadb")])
async def test_every_change_has_an_envelope_and_comes_back(kind: str, connector: str, serve: Serve) -> None:
    async with serve(kind)() as adapter, listening(adapter) as listener, adapter.writer() as writer:
        written = {f"c{place}": sample.written for place, sample in enumerate(adapter.samples)}
        await writer.run(Insert(TYPES, {"id": 1, **written}))
        await writer.run(Update(TYPES, 1, dict.fromkeys(written)))
        await writer.run(Delete(TYPES, 1))
        await listener.until(lambda: len(listener.rows) >= 3, "three changes")
        for batch in listener.batches:
            for change, columns in zip(batch.changes, batch.columns, strict=True):
                raw = debezium.encode(change, columns=columns)
                assert raw is not None
                source = json.loads(raw)["source"]
                assert (source["connector"], source["table"]) == (connector, TYPES)
                back = debezium.decode(raw, columns)
                names = {column.name for column in columns if column.type != "interval"}  # days come back as hours
                for image, again in ((change.before, back.before), (change.after, back.after)):
                    assert (image is None) == (again is None)
                    if image is not None and again is not None:
                        assert [name for name in names if not same(image[name], again[name])] == []
                assert (back.id, back.op, back.schema, back.key) == (change.id, change.op, change.schema, change.key)


@pytest.mark.contract("W12")
async def test_connections_that_fall_silent_are_given_up(serve: Serve) -> None:
    """All at once: it takes as long as a source waits for a sign of life."""
    found = await asyncio.gather(*(outcome(serve(kind), check_half_open_connections) for kind in KINDS))
    assert [each.result for each in found] == ["passed"] * len(KINDS), [each.why for each in found]
