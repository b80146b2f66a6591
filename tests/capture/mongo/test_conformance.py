"""The suite that every source must pass, on a real replica set. Killed consumers are left to the suite's own tests."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from forge.testing.conformance import Check, CountingProxy, checks, conform, name
from tests.checkers.conformance.mongo import opened


@pytest.fixture(scope="module")
def proxy(server_url: str) -> Iterator[CountingProxy | None]:
    """What lies before the server; nothing does before one that is named by several hosts."""
    parts = urlsplit(server_url)
    if "," in parts.netloc or parts.scheme != "mongodb":
        yield None
        return
    with CountingProxy(parts.hostname or "localhost", parts.port or 27017) as proxy:
        yield proxy


def each() -> Iterator[object]:
    for check in checks():
        if name(check) != "killed consumer":
            marks = [pytest.mark.long] if name(check) == "slow consumer" else []
            yield pytest.param(check, id=name(check), marks=marks)


@pytest.mark.contract("W2", "W9", "W12")
@pytest.mark.parametrize("check", list(each()))
async def test_it_conforms(check: Check, server_url: str, proxy: CountingProxy | None) -> None:
    async with opened(server_url, proxy) as adapter:
        await conform(check, adapter)
