"""Queue and hook are sources as all others are."""

import pytest

from forge.testing.conformance import Check, checks, conform, name
from tests.checkers.conformance import hook, sqlite

LONG = ("killed consumer", "slow consumer")


@pytest.mark.contract("W6")
@pytest.mark.parametrize("check", checks(), ids=name)
async def test_the_queue_conforms(check: Check) -> None:
    with sqlite.serving() as opening:
        async with opening() as adapter:
            await conform(check, adapter)


@pytest.mark.contract("W6")
@pytest.mark.parametrize("check", [check for check in checks() if name(check) not in LONG], ids=name)
async def test_the_queue_conforms_with_a_rollback_journal(check: Check) -> None:
    with sqlite.serving("delete") as opening:
        async with opening() as adapter:
            await conform(check, adapter)


@pytest.mark.contract("W6")
@pytest.mark.parametrize("check", checks(), ids=name)
async def test_the_hook_conforms(check: Check) -> None:
    with hook.serving() as opening:
        async with opening() as adapter:
            await conform(check, adapter)
