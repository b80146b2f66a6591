"""`forge.queries` and `forge.metrics`: the live queries of this node, and their cost. Neither uses the database."""

import hashlib
import heapq
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from forge.react.database import QueryContext
from forge.react.group import Group
from forge.react.registry import Auth
from forge.serve.console.console_context import OFTEN, Desk, shown

MOST: Final = 500
"""Maximum number of groups shown; those with the most subscribers come first."""
COUNTS: Final = ("changes", "touched", "pruned", "runs", "pushed", "wasted", "missed", "failed", "checked", "resyncs")


def register(desk: Desk) -> None:
    node, activity = desk.node, desk.activity

    async def queries(ctx: QueryContext) -> list[dict[str, Any]]:
        """The live queries of this node, each with its arguments and its scope."""
        groups = heapq.nlargest(MOST, node.reactor.groups.values(), key=lambda group: len(group.subscribers))
        return sorted(map(_group, groups), key=lambda each: (each["own"], each["query"], each["id"]))

    async def metrics(ctx: QueryContext) -> dict[str, Any]:
        """Counters of this node since its start, and for the last two minutes."""
        groups = [group for group in node.reactor.groups.values() if not group.call.query.own]
        return {
            **{name: getattr(node.reactor.metrics, name) for name in COUNTS},
            "sessions": len(node.sessions),
            "groups": len(groups),
            "subscribers": sum(len(group.subscribers) for group in groups),
            "waiting": sum(session.waiting for session in node.sessions.values()),
            "commit_to_push_p50_ms": activity.latency(0.5),
            "commit_to_push_p95_ms": activity.latency(0.95),
            "ring": activity.seconds(),
        }

    desk.query(queries, "forge.queries", key=("id",), every=OFTEN)
    desk.query(metrics, "forge.metrics", every=OFTEN)


def _group(group: Group) -> dict[str, Any]:
    query, result = group.call.query, group.result
    return {
        "id": hashlib.sha256(b"\0".join((group.key[0].encode(), *group.key[1:]))).hexdigest()[:16],
        "query": query.name,
        "arguments": shown(msgspec.json.decode(group.key[1])),
        "scope": {"kind": query.scope, **_person(group.call.auth)},
        "subscribers": len(group.subscribers),
        "runs": group.runs,
        "pushed": group.pushed,
        "wasted": group.wasted,
        "failed": group.failed,
        "last_ms": None if group.took is None else round(group.took * 1000, 2),
        "last_run": None if group.ran_at is None else datetime.fromtimestamp(group.ran_at, UTC),
        "rows": None if result is None else len(result.rows),
        "bytes": None if result is None else result.size,
        "reads": sorted({f"{read.schema}.{read.table}" for read in group.reads}),
        "refresh_every": query.refresh_every,
        "error": None if group.error is None else str(group.error),
        "own": query.own,
    }


def _person(auth: Auth) -> dict[str, Any]:
    return {"user": auth.user, "tenant": auth.tenant, "role": auth.role}
