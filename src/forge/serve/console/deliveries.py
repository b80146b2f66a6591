"""Consumers, dead letters, the outbox and webhooks; replay and discard of dead letters.

The change of a letter contains row values, and the payload of a message may contain them: neither is shown. Parts of a
webhook's URL that may grant access are not shown either.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
import psycopg

from forge.deliver.consumers.control import Control, ShardStatus
from forge.deliver.consumers.definition import WEBHOOK
from forge.deliver.consumers.letters import Parked, parked
from forge.deliver.consumers.sql import sql
from forge.deliver.outbox.control import OutboxControl as Outbox
from forge.deliver.webhooks.endpoints import Endpoints
from forge.errors import BadArguments, LetterUnknown
from forge.react.database import QueryContext
from forge.serve.console.console_context import Desk, utc

EVERY: Final = 1.9
OUTBOX: Final = "console outbox"
MOST_LETTERS: Final = 1000
_log = logging.getLogger(__name__)


def register(desk: Desk) -> None:
    url = desk.node.reactor.url

    async def consumers(ctx: QueryContext) -> list[dict[str, Any]]:
        """Every shard of every consumer, with its status; webhooks have their own query."""
        return [_consumer(each) for each in await Control(url).statuses() if not each.name.startswith(WEBHOOK)]

    async def webhooks(ctx: QueryContext) -> list[dict[str, Any]]:
        """Every endpoint, without its secrets, with its status."""
        standing = {each.name: each for each in await Control(url).statuses()}
        return [
            {
                "name": each.name,
                "url": each.where_to,
                "tables": each.tables,
                "ops": each.ops,
                **_fares(standing.get(WEBHOOK + each.name)),
            }
            for each in await Endpoints(url).all()
        ]

    async def dead_letters(ctx: QueryContext, limit: int = 200) -> list[dict[str, Any]]:
        """Changes and messages that could not be handled or sent, in order: first of consumers, then of the outbox."""
        if not 1 <= limit <= MOST_LETTERS:
            raise BadArguments(f"limit cannot be {limit}", fix=f"use 1 to {MOST_LETTERS}")
        letters = await desk.ask(lambda connection: parked(connection, limit))
        messages = await desk.thread(lambda: Outbox(url).dead(None, limit), OUTBOX)
        return [_letter(each) for each in letters] + [
            {
                "id": f"outbox:{each.id}",
                "kind": "outbox",
                "consumer": each.topic,
                "table": None,
                "key": each.key,
                "change_id": None,
                "error": each.error or "",
                "tries": each.tries,
                "behind": each.state == "behind",
                "replay": False,
                "parked_at": utc(each.since),
            }
            for each in messages
        ]

    async def outbox(ctx: QueryContext) -> list[dict[str, Any]]:
        """Every topic that has messages, with its status."""
        found = await desk.thread(Outbox(url).lag, OUTBOX)
        return [{**msgspec.structs.asdict(each), "seconds": round(each.seconds, 1)} for each in found]

    async def replay_letter(ctx: QueryContext, id: str) -> dict[str, Any]:
        """Send a letter again, with all letters of its row or key."""
        kind, number = _parsed(id)
        if kind == "consumer":
            count = await ctx.db.execute(sql("replay_letter"), {"id": int(number)})
        else:
            count = await _in_outbox(desk, lambda: Outbox(url).replay_dead(id=number))
        _told("replayed", id, count, ctx)
        return {"replayed": count}

    async def discard_letter(ctx: QueryContext, id: str) -> dict[str, Any]:
        """Remove a letter; what waits behind it continues."""
        kind, number = _parsed(id)
        if kind == "consumer":
            await ctx.db.execute(sql("keep_letters"))
            count = await ctx.db.fetch_value(sql("discard_letter"), {"id": int(number)})
        else:
            count, _ = await _in_outbox(desk, lambda: Outbox(url).drop_dead(id=number))
        _told("discarded", id, count, ctx)
        return {"discarded": count}

    desk.query(consumers, "forge.consumers", key=("name", "shard"), every=EVERY)
    desk.query(webhooks, "forge.webhooks", key=("name",), every=EVERY)
    desk.query(dead_letters, "forge.dead_letters", key=("id",), every=EVERY)
    desk.query(outbox, "forge.outbox", key=("topic",), every=EVERY)
    desk.mutation(replay_letter, "forge.replay_letter")
    desk.mutation(discard_letter, "forge.discard_letter")


def _parsed(id: str) -> tuple[str, str]:
    kind, _, rest = id.partition(":")
    known = kind == "consumer" and rest.isdecimal() and len(rest) <= 18
    if not known and (kind != "outbox" or not rest):
        raise BadArguments(f"{id[:60]!r} is not a letter's id", fix="use one of forge.dead_letters")
    return kind, rest


async def _in_outbox(desk: Desk, work: Callable[[], Any]) -> Any:
    try:
        return await desk.thread(work, OUTBOX)
    except psycopg.DataError:
        raise BadArguments("that is not a message's id", fix="use one of forge.dead_letters") from None


def _told(what: str, id: str, count: int, ctx: QueryContext) -> None:
    if not count:
        raise LetterUnknown(f"there is no letter {id[:60]}", fix="it may have been sent meanwhile: look again")
    _log.info("%s was %s, by the console, by %s", id, what, ctx.auth.user)


def _consumer(status: ShardStatus) -> dict[str, Any]:
    told = msgspec.structs.asdict(status)
    return {name: value for name, value in told.items() if name != "cursor"} | {
        "lag_seconds": None if status.lag_seconds is None else round(status.lag_seconds, 1)
    }


def _fares(status: ShardStatus | None) -> dict[str, Any]:
    """Return the status of an endpoint's consumer; a new endpoint has none yet."""
    told = {} if status is None else _consumer(status)
    counts = ("delivered", "retried", "parked", "dead_letters")
    others = ("working", "lag_events", "lag_seconds", "last_error", "error_at")
    return {
        "state": told.get("state", "new"),
        **{name: told.get(name, 0) for name in counts},
        **{name: told.get(name) for name in others},
    }


def _letter(letter: Parked) -> dict[str, Any]:
    told = msgspec.structs.asdict(letter)
    return {**told, "id": f"consumer:{letter.id}", "kind": "consumer", "parked_at": utc(letter.parked_at)}
