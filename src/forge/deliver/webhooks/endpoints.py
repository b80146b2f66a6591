"""Endpoints stored in the database: added, listed and removed at any time, by `forge webhooks` or this API.

    endpoints = Endpoints(url)
    added = await endpoints.add("crm", "https://crm.example.com/hook", tables=["orders"])
    print(added.secrets[0])

Each is a durable consumer called `webhook:name`. Every node that serves or consumes works on it, within about a second;
all commands for consumers (pause, rewind, dead letters, lag) apply to it. It gets the changes committed after it was
added. Adding an invalid endpoint raises WebhookInvalid and stores nothing.
"""

import logging
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import msgspec

from forge.capture.log import columns_query
from forge.change import Op
from forge.changelog.reader import Reader
from forge.config import nearest
from forge.deliver.consumers.control import Control
from forge.deliver.consumers.definition import MOST_BATCH, USUAL, WEBHOOK, Consumer, Consumers
from forge.deliver.consumers.lease import ShardLease
from forge.deliver.consumers.sql import sql as consumers_sql
from forge.deliver.message import Message
from forge.deliver.payload import Envelope, Payload
from forge.deliver.webhooks.signature import new_secret
from forge.deliver.webhooks.webhook import BUDGET, EndpointResponse, Webhook
from forge.errors import ConfigError, ConsumerUnknown, ForgeError, WebhookInvalid, WebhookUnknown
from forge.postgres.connection import AsyncConnection, connect_async, typed_errors
from forge.postgres.queries import query_file

_sql: Final = query_file("forge.deliver.webhooks")

KEEP: Final = 24 * 3600.0
"""Seconds for which a replaced secret continues to sign."""
TEST: Final = "forge.test"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,53}")
_ANEW: Final = "remove it, and add it again"
_log = logging.getLogger("forge.consumers")


class Endpoint(msgspec.Struct, frozen=True):
    """A stored endpoint. The first secret is the newest; all of them sign."""

    name: str
    url: str
    secrets: tuple[str, ...]
    tables: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str | None = None
    envelope: Envelope = "forge"
    payload: Any = None
    batch: int = 1
    in_flight: int = 16
    timeout: float = 10.0
    tries: int | None = None
    headers: dict[str, str] = {}
    allow: tuple[str, ...] = ()

    @property
    def where_to(self) -> str:
        """The part of its URL that may be shown: the rest may contain credentials."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.where_to!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("where_to", self.where_to)]

    def webhook(self) -> Webhook:
        """Return the sink that sends to it."""
        return Webhook(
            self.url,
            secret=self.secrets,
            batch=self.batch,
            in_flight=self.in_flight,
            timeout=self.timeout,
            headers=self.headers,
            allow=self.allow,
        )

    def consumer(self) -> Consumer:
        """Return the consumer that works on it; raise WebhookInvalid."""
        if not _NAME.fullmatch(self.name):
            raise WebhookInvalid(
                f"{self.name!r} is not a webhook's name",
                fix="up to 54 letters, digits and . _ -, such as orders-to-crm",
            )
        try:
            return Consumers().deliver(
                WEBHOOK + self.name,
                to=self.webhook(),
                envelope=self.envelope,
                payload=self.payload,
                batch=min(MOST_BATCH, max(100, self.batch * self.in_flight)),
                tries=self.tries,
                timeout=BUDGET + self.timeout + 5.0,
                tables=self.tables,
                ops=self.ops or USUAL,
                columns=self.columns,
                where=self.where,
            )
        except ForgeError as error:
            raise WebhookInvalid(f"the webhook {self.name}: {error}", fix=error.fix) from None


class Endpoints:
    """The endpoints of one database."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def all(self) -> list[Endpoint]:
        """Return every endpoint, by name."""
        async with self._connected() as connection:
            return await _stored(connection, None)

    async def add(
        self,
        name: str,
        url: str,
        *,
        secret: str | None = None,
        tables: Sequence[str] = (),
        ops: Sequence[Op | str] = (),
        columns: Sequence[str] = (),
        where: str | None = None,
        envelope: Envelope = "forge",
        payload: Payload = None,
        batch: int = 1,
        in_flight: int = 16,
        timeout: float = 10.0,
        tries: int | None = None,
        headers: Mapping[str, str] | None = None,
        allow: Sequence[str] = (),
    ) -> Endpoint:
        """Add an endpoint for changes from now on; without a secret one is generated. Raise WebhookInvalid."""
        for word, given in (("tables", tables), ("ops", ops), ("columns", columns), ("allow", allow)):
            if isinstance(given, str):
                raise WebhookInvalid(f"{word} of the webhook {name} is a text", fix=f"give a list: {word}=[{given!r}]")
        endpoint = Endpoint(
            name=name,
            url=url,
            secrets=(secret or new_secret(),),
            tables=tuple(tables),
            ops=tuple(str(op) for op in ops),
            columns=tuple(columns),
            where=where,
            envelope=envelope,
            payload=payload,
            batch=batch,
            in_flight=in_flight,
            timeout=timeout,
            tries=tries,
            headers=dict(headers or {}),
            allow=tuple(allow),
        )
        consumer = endpoint.consumer()
        async with self._connected() as connection:
            await _check_columns(connection, endpoint, consumer)
            cursor = str(await (await Reader.over(connection)).now())
            async with connection.transaction():
                if not await _rows(connection, _sql("add"), _values(endpoint)):
                    raise WebhookInvalid(
                        f"there is a webhook {name} already",
                        fix=f"choose another name, or: forge webhooks remove {name}",
                    )
                values = {"name": consumer.name, "shards": 1, "tables": list(tables), "cursor": cursor}
                await _rows(connection, consumers_sql("register"), values)
        return endpoint

    async def test(self, name: str) -> EndpointResponse:
        """Send one message of the topic `forge.test` immediately; raise NotDelivered if it is not answered."""
        async with self._known(name) as (_, endpoint):
            pass
        webhook = endpoint.webhook()
        try:
            body = msgspec.json.encode({"type": TEST, "timestamp": datetime.now(UTC).isoformat(), "data": {}})
            return await webhook.ask(Message(f"test_{uuid.uuid4().hex}", TEST, body, datetime.now(UTC)))
        finally:
            await webhook.close()

    async def disable(self, name: str) -> None:
        """Send nothing after the requests in flight; changes committed meanwhile wait."""
        async with self._known(name):
            await Control(self._url).pause(WEBHOOK + name)

    async def enable(self, name: str) -> None:
        """Continue at the position where it was disabled."""
        async with self._known(name):
            await Control(self._url).resume(WEBHOOK + name)

    async def rotate(self, name: str, *, secret: str | None = None, keep: float = KEEP) -> str:
        """Set a new secret and return it; the previous one continues to sign for `keep` seconds."""
        made = secret or new_secret()
        async with self._known(name) as (connection, endpoint):
            msgspec.structs.replace(endpoint, secrets=(made,)).consumer()  # raises for an invalid secret
            if made in endpoint.secrets:
                raise WebhookInvalid(f"the webhook {name} signs with this secret already", fix="leave out the secret")
            await _rows(connection, _sql("rotate"), {"name": name, "secret": made, "seconds": max(0.0, keep)})
        return made

    async def remove(self, name: str) -> None:
        """Remove an endpoint, with its cursor and dead letters."""
        async with self._known(name) as (connection, _):
            with suppress(ConsumerUnknown):
                await Control(self._url).pause(WEBHOOK + name)
            async with connection.transaction():
                await _rows(connection, _sql("remove"), {"name": name})
                await _rows(connection, consumers_sql("forget"), {"name": WEBHOOK + name})

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        connection = await connect_async(self._url)
        try:
            with typed_errors():
                yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def _known(self, name: str) -> AsyncIterator[tuple[AsyncConnection, Endpoint]]:
        async with self._connected() as connection:
            found = await _stored(connection, name)
            if not found:
                close = nearest(name, [each.name for each in await _stored(connection, None)])
                fix = f"did you mean {close}?" if close else "forge webhooks list shows those there are"
                raise WebhookUnknown(f"there is no webhook {name!r}", fix=fix)
            yield connection, found[0]


class Configured:
    """The consumers of the endpoints in a database, each the same object until its endpoint changes."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[Any, ...], Consumer | None]] = {}

    async def __call__(self, lease: ShardLease) -> dict[str, Consumer]:
        before, self._made = self._made, {}
        for row in await lease.ask(_sql("all"), {"name": None}):
            made = before.get(row[0])
            self._made[row[0]] = made if made and made[0] == row else (row, _consumer(row))
        return {consumer.name: consumer for _, consumer in self._made.values() if consumer is not None}


def _consumer(row: tuple[Any, ...]) -> Consumer | None:
    """Return the consumer of a row; a row that this program cannot use is logged once and blocks no others."""
    try:
        return _endpoint(row).consumer()
    except WebhookInvalid as error:
        _log.error("%s; fix: %s", error, error.fix)
        return None


async def _check_columns(connection: AsyncConnection, endpoint: Endpoint, consumer: Consumer) -> None:
    """Raise WebhookInvalid for a column that no table of the log has or had: the endpoint would wait forever."""
    known = await (await connection.execute(columns_query())).fetchall()
    try:
        consumer.wanted.check_columns(known)
    except ConfigError as error:
        raise WebhookInvalid(f"the webhook {endpoint.name}: {error}", fix=error.fix) from None


async def _rows(connection: AsyncConnection, statement: LiteralString, values: Mapping[str, Any]) -> list[Any]:
    cursor = await connection.execute(statement, values)
    return await cursor.fetchall() if cursor.description else []


async def _stored(connection: AsyncConnection, name: str | None) -> list[Endpoint]:
    return [_endpoint(row) for row in await _rows(connection, _sql("all"), {"name": name})]


def _values(endpoint: Endpoint) -> dict[str, Any]:
    stored = msgspec.structs.asdict(endpoint)
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in stored.items()},
        "secret": endpoint.secrets[0],
        "condition": endpoint.where,
        "payload": None if endpoint.payload is None else msgspec.json.encode(endpoint.payload).decode(),
        "headers": msgspec.json.encode(endpoint.headers).decode(),
    }


_FIELDS: Final = (
    "name", "url", "secrets", "tables", "ops", "columns", "where", "envelope", "payload", "batch", "in_flight",
    "timeout", "tries", "headers", "allow",
)  # fmt: skip


def _endpoint(row: tuple[Any, ...]) -> Endpoint:
    """Convert a row of `all`; raise WebhookInvalid."""
    told = dict(zip(_FIELDS, row, strict=True))
    try:
        told["payload"] = told["payload"] and msgspec.json.decode(told["payload"])
        told["headers"] = msgspec.json.decode(told["headers"])
        return msgspec.convert(told, Endpoint)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise WebhookInvalid(f"the webhook {told['name']} is stored as none can be: {error}", fix=_ANEW) from None
