"""The settings that a user gets who sets none."""

import asyncio
from typing import Any

import pytest

from forge.app import Forge
from forge.changelog.maintenance import Policy
from forge.postgres.connection import Connection
from tests.serve.serving import serving


@pytest.mark.contract("R3", "R4", "R9", "R12", "R13", "T5", "W8")
async def test_what_is_in_force_where_nothing_was_set(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the parts that use them, of an application that is served."""
    policies: list[Policy] = []

    async def maintain(url: str, policy: Policy, *more: Any, **options: Any) -> None:
        policies.append(policy)
        await asyncio.Event().wait()

    monkeypatch.setattr("forge.app.maintain", maintain)
    app = Forge(database)
    async with serving(app) as served:
        assert (await served.client.get("/readyz")).status_code == 200
        node = served.node
        reactor, limits = node.reactor, node.gate.limits
        assert (reactor._debounce._quiet, reactor._debounce._longest) == (0.050, 0.200)
        assert reactor._room._value == 64  # re-executions at once
        assert reactor.settings.resync == 600
        assert reactor.settings.max_result_bytes == 10 * 1024 * 1024
        assert node.options.keepalive == 25
        assert (limits.sessions_per_user, limits.sessions_per_ip, limits.subscriptions_per_user) == (8, 32, 500)
    assert [(policy.interval, policy.retention_days) for policy in policies] == [(60, 30)]
