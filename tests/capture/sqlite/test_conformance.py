"""Queue and hook are sources as all others are."""

from pathlib import Path

import pytest

from forge.testing.conformance import Check, checks, conform, name
from tests.capture.sqlite.adapter import opened_hook, opened_queue


@pytest.mark.contract("W6")
@pytest.mark.parametrize("check", checks(), ids=name)
async def test_the_queue_conforms(check: Check, tmp_path: Path) -> None:
    async with opened_queue(tmp_path, "wal") as adapter:
        await conform(check, adapter)


LONG = ("killed consumer", "slow consumer")


@pytest.mark.contract("W6")
@pytest.mark.parametrize("check", [check for check in checks() if name(check) not in LONG], ids=name)
async def test_the_queue_conforms_with_a_rollback_journal(check: Check, tmp_path: Path) -> None:
    async with opened_queue(tmp_path, "delete") as adapter:
        await conform(check, adapter)


@pytest.mark.contract("W6")
@pytest.mark.parametrize("check", checks(), ids=name)
async def test_the_hook_conforms(check: Check, tmp_path: Path) -> None:
    async with opened_hook(tmp_path) as adapter:
        await conform(check, adapter)
