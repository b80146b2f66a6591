"""One serving node: the sessions of its clients, and their permitted operations.

Every client request goes through here, over any transport: limits are counted, arguments are checked, and everything
that belongs to a session ends with it.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from forge.cache.validity import Shown
from forge.change import Change
from forge.changelog.reader import Batch
from forge.changelog.tenancy import sole_tenants
from forge.config import default
from forge.cursor import NOW, After
from forge.errors import AuthFailed, BadArguments, ConfigError, Forbidden, UnknownSession
from forge.history.instants import Gap
from forge.react import past
from forge.react.cached import Cached
from forge.react.catalog import OWN_TABLES
from forge.react.reactor import ActorShown, Reactor
from forge.react.registry import OWN, Auth, Call, Mutation, Query, Registry
from forge.react.result import Result, encode
from forge.react.runner import MutationAnswer
from forge.serve.auth import Authenticator, AuthSettings, Revocations, TokenIdentity
from forge.serve.bus import Bus, wire_revocations
from forge.serve.channels import Channels
from forge.serve.limits import Gate, Hold, Holder, Limits, holder_of
from forge.serve.messages import Frame, fields
from forge.serve.metrics import Instruments
from forge.serve.once import IdempotentCall
from forge.serve.permissions import oversee, permit
from forge.serve.session import Mode, Session, SessionSubscription
from forge.serve.slow_queries import Threads
from forge.serve.traces import trace_push
from forge.serve.turns import Turns

LONGEST_NAME: Final = 64
CONSOLE: Final = "console"
"""Prefix of the thread kinds for console queries."""
_WARNING: Final = 30.0
_log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True):
    """Options of a node; the configuration supplies some missing values. Times in seconds."""

    auth: AuthSettings | None = None
    limits: Limits = Limits()
    origins: tuple[str, ...] = default("serve.origins")
    allowed_hosts: tuple[str, ...] = default("serve.allowed_hosts")
    """Hosts that requests may name when there are no tokens, besides loopback and the address that the server listens
    on; `*` means all."""
    keepalive: float = default("realtime.keepalive_interval")
    tenant_column: str | None = None
    """The tenant column of rows; the raw feed shows a tenant only its own rows."""
    history: str | None = "forge:history"
    """Permission that a token needs for history and audit; None closes them to all."""
    versions: str | None = "forge:versions"
    """Permission that a token needs for change versions, alone or followed by `:project` or `:project/resource`; None
    closes them to all."""
    console: str | None = None
    """Permission that a token needs for the console and the raw feed of all tenants; None closes them to tokens.
    Without tokens, the console is open only to this machine."""
    operate: str | None = None
    """Permission that a token needs to enable tables and handle dead letters in the console; None means nobody."""
    lake: str | None = None
    """Folder of the lake that the console shows."""

    def __post_init__(self) -> None:
        for name in ("origins", "allowed_hosts"):
            if isinstance(given := getattr(self, name), str):
                raise ConfigError(f"{name} is a tuple of texts, not one", fix=f"give {name}=({given!r},)")


class _Busy(Exception):
    """A cached query has to run for a caller that has no free turn."""


class Node:
    """Sessions, and their connection to the reactor."""

    def __init__(
        self,
        registry: Registry,
        reactor: Reactor,
        options: Options,
        clock: Callable[[], float] = time.time,
        cached: Cached | None = None,
    ) -> None:
        self.registry = registry
        self.own = Registry()
        """Forge's own queries and mutations, which the console calls."""
        self.reactor = reactor
        self.options = options
        self.authenticator = Authenticator(options.auth, clock)
        self.revocations = Revocations()
        self.gate = Gate(options.limits)
        # one connection always stays free for others
        running = min(options.limits.requests_per_user, max(1, reactor.runner.connections - 1))
        self.turns = Turns(running, options.limits.waiting_per_user)
        self.sessions: dict[str, Session] = {}
        self.instruments = Instruments(
            reactor,
            sessions=lambda: len(self.sessions),
            waiting=lambda: sum(session.waiting for session in self.sessions.values()),
            requests=self.turns,
            cache=None if cached is None else lambda: msgspec.structs.asdict(cached.keeper.metrics),
            dropped=lambda: self.bus.dropped,
        )
        reactor.on_latency = self.instruments.observe
        reactor.on_push.append(trace_push)
        if options.auth is not None:
            reactor.actors = self._actors
        self.cached = cached
        self.bus = Bus(reactor.url)
        self.channels = Channels(self.bus)
        self.threads = Threads()
        self.stopping = False
        self.ending = asyncio.Event()
        """Set when the node stops, for tasks that wait for it."""
        self._clock = clock
        self._holds: dict[str, Hold] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self) -> None:
        if self.cached is not None:
            await self.cached.start()
        try:
            await self.reactor.start()
        except BaseException:
            await self._uncached()
            raise
        wire_revocations(self, self.bus)
        self.bus.on("definitions", lambda payload: self._redefined())
        self.bus.on("own", self._own_changed)
        self.bus.on_reconnect.append(self._redefined)
        try:
            await self.bus.start()
        except BaseException:
            await self.reactor.stop()
            await self._uncached()
            raise
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def farewell(self) -> None:
        """Tell every client to reconnect, each after a different delay, and end its session.

        Running requests may finish, except the console's, which may be slow.
        """
        self.stopping = True
        self.ending.set()
        for session in list(self.sessions.values()):
            session.send(Frame("bye", fields(reason="restart", retry_after_ms=random.randint(100, 3000))))
            session.close("restart")
        self.threads.give_up(CONSOLE)

    async def stop(self) -> None:
        """Stop, after every client is informed."""
        self.farewell()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._empty.wait()
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        await self.threads.close()
        await self.authenticator.close()
        await self.bus.stop()
        await self.reactor.stop()
        await self._uncached()

    async def _uncached(self) -> None:
        if self.cached is not None:
            await self.cached.stop()

    async def identify(self, token: str | None, *, local: bool = False) -> TokenIdentity:
        """Return the identity of a token; raise AuthFailed. `local`: the request comes from this machine."""
        identity = await self.authenticator.verify(token)
        if self.revocations.revoked(identity):
            raise AuthFailed("the token was revoked", fix="sign in again")
        return msgspec.structs.replace(identity, local=True) if local else identity

    def oversees(self, identity: TokenIdentity) -> bool:
        """Whether a caller may see the rows of all tenants."""
        try:
            oversee("the console", self.options.console, identity, secured=self.options.auth is not None)
        except Forbidden:
            return False
        return True

    def call(self, name: str, arguments: Any, identity: TokenIdentity) -> Call:
        """Check the permission and the arguments; return a call of a query."""
        call = self._registry(name).call(name, arguments, identity.auth)
        self._permit(call.query, identity)
        return call

    def _registry(self, name: str) -> Registry:
        return self.own if name.startswith(OWN) else self.registry

    def _permit(self, function: Query | Mutation, identity: TokenIdentity) -> None:
        check = oversee if function.name.startswith(OWN) else permit
        check(function.name, function.permission, identity, secured=self.options.auth is not None)

    # Sessions

    def open(self, identity: TokenIdentity, address: str) -> Session:
        """Open a session; raise TooMany at the limit."""
        hold = self.gate.session(_person(identity), address)
        session = Session(identity, address, self._clock)
        self.sessions[session.id] = session
        self._empty.clear()
        self._holds[session.id] = hold
        return session

    def close(self, session: Session) -> None:
        """End everything that belongs to the session."""
        session.close("gone")
        if self.sessions.pop(session.id, None) is None:
            return
        for name in list(session.subscriptions):
            self.unsubscribe(session, name)
        self._holds.pop(session.id).release()
        self.channels.gone(session)
        if not self.sessions:
            self._empty.set()

    def session(self, id: str, identity: TokenIdentity) -> Session:
        """Return the session if it belongs to the caller."""
        session = self.sessions.get(id)
        if session is None or not _same_person(session.identity, identity):
            raise UnknownSession("there is no such session", fix="open one: GET /forge/session")
        return session

    def subscribe(
        self, session: Session, name: str, query: str, arguments: Any, mode: Mode = "full", known: str | None = None
    ) -> None:
        """Subscribe the session to the results of a query, under this name."""
        if not name or len(name) > LONGEST_NAME or name in session.subscriptions:
            raise BadArguments(
                "a subscription needs a name of its own, of 64 characters at the most", fix="name another"
            )
        call = self.call(query, arguments, session.identity)
        hold = self.gate.subscription(_person(session.identity), session.address)
        subscription = SessionSubscription(session, name, mode, known)
        session.subscriptions[name] = subscription
        subscription.hold = hold
        subscription.asked = (query, arguments)
        subscription.group = self.reactor.subscribe(call, subscription)

    def unsubscribe(self, session: Session, name: str) -> bool:
        """Unsubscribe; return False if there is no such subscription."""
        subscription = session.subscriptions.pop(name, None)
        if subscription is None:
            return False
        if subscription.group is not None:
            self.reactor.unsubscribe(subscription.group, subscription)
        session.forget(subscription)
        if subscription.hold is not None:
            subscription.hold.release()
        return True

    async def renew(self, session: Session, token: str | None) -> None:
        """Continue as the same user with a newer token; subscriptions run again if its claims differ."""
        identity = await self.identify(token, local=session.identity.local)
        if not _same_person(session.identity, identity):
            raise AuthFailed("the token is another user's", fix="open a session of its own")
        before, session.identity, session.warned = session.identity, identity, False
        session.send(Frame("auth", fields(expires_at=identity.expires_at)))
        if before.auth == identity.auth:
            return
        for subscription in list(session.subscriptions.values()):
            try:
                call = self.call(*subscription.asked, identity)
            except Forbidden as error:
                self._ask_no_more(session, subscription)
                subscription.fail(error)
                continue
            if subscription.group is not None and call.group == subscription.group.key:
                continue
            self._ask_no_more(session, subscription)
            subscription.group = self.reactor.subscribe(call, subscription)

    def _ask_no_more(self, session: Session, subscription: SessionSubscription) -> None:
        """Stop a subscription whose query has another result, or none, for the new token; drop its old result."""
        if subscription.group is not None:
            self.reactor.unsubscribe(subscription.group, subscription)
            subscription.group = None
        session.forget(subscription)
        subscription.reset()

    def revoke(
        self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None, at: float
    ) -> None:
        """Refuse tokens issued up to `at`, and end the sessions that use them, at once."""
        self.revocations.revoke(user=user, tenant=tenant, token_id=token_id, at=at)
        for session in list(self.sessions.values()):
            if self.revocations.revoked(session.identity):
                self._expel(session, "revoked")

    def _actors(self, batch: Batch, whole: bool) -> ActorShown:
        """Decide which actors are shown: to a tenant those of its own rows, to a user without a tenant the user itself.

        A user name is unique only within a tenant, and the log does not record the tenant.
        """
        column = self.options.tenant_column
        tenants = sole_tenants(batch.changes, batch.columns, column) if whole and column is not None else {}

        def shown(auth: Auth, change: Change) -> bool:
            if auth.tenant is None:
                return auth.user is not None and change.context.user_id == auth.user
            return tenants.get(change.source.transaction or "") == auth.tenant

        return shown

    def _own_changed(self, payload: Any) -> None:
        """Handle a node's message that Forge's own tables changed, such as the status of consumers."""
        if isinstance(payload, list):
            self.reactor.own_changed(table for table in payload if table in OWN_TABLES)

    def _redefined(self) -> None:
        """Views, functions, policies or grants changed, which changes the results of queries and who may see them."""
        self.reactor.runner.forget()
        self.reactor.resync()

    # Calls

    async def query(
        self, name: str, arguments: Any, identity: TokenIdentity, after: After = NOW, address: str = ""
    ) -> Shown:
        """Return the result of a query, or a cached result that is still valid; it contains what `after` requires."""
        call = self.call(name, arguments, identity)
        holder = holder_of(_person(identity), address)
        if self.cached is not None and call.query.cache is not False:
            return await self._query_cached(self.cached, call, after, holder)
        # Forge's own queries run in separate threads, for console users
        async with contextlib.nullcontext() if call.query.own else self.turns.turn(holder):
            return await self._query_once(call, after)

    async def _query_once(self, call: Call, after: After) -> Shown:
        result, outcome = await self.reactor.once(call, after)
        return Shown(result.json(), result.hash, str(outcome.coverage), None)

    async def _query_cached(self, cached: Cached, call: Call, after: After, holder: Holder) -> Shown:
        """Return the result of a cached query. Only a run takes a turn; no caller waits for another user's turn."""

        @contextlib.asynccontextmanager
        async def at_once() -> AsyncIterator[None]:
            if not self.turns.free(holder):
                raise _Busy
            async with self.turns.turn(holder):
                yield

        try:
            return await cached.ask(call, after, at_once)
        except _Busy:  # the caller, or the caller whose run it joined, has no free turn
            pass
        async with self.turns.turn(holder):
            try:
                return await cached.ask(call, after)
            except _Busy:
                return await self._query_once(call, after)

    async def query_as_of(
        self, name: str, arguments: Any, identity: TokenIdentity, at: datetime | None, address: str = ""
    ) -> tuple[Result, Gap | None]:
        """Return a query's result at an instant (None means now), and its distance from the instant."""
        call = self.call(name, arguments, identity)
        if call.query.own:
            raise BadArguments(f"{name} tells of now", fix="leave out as_of")
        async with self.turns.turn(holder_of(_person(identity), address)):
            then = await past.ask(self.reactor.url, call, at)
        gap = then.gap if then.gap is None or identity.auth.tenant is None else then.gap.untold()
        return encode(then.value, key=call.query.key, most=self.reactor.settings.max_result_bytes), gap

    async def mutate(
        self,
        name: str,
        arguments: Any,
        identity: TokenIdentity,
        trace: str | None,
        key: str | None = None,
        address: str = "",
    ) -> tuple[Result, MutationAnswer]:
        """Run a mutation; with a key, once for any number of calls."""
        mutation, checked = self._registry(name).change(name, arguments)
        self._permit(mutation, identity)
        own = name.startswith(OWN)
        auth = msgspec.structs.replace(identity.auth, role=None) if own else identity.auth
        most = self.reactor.settings.max_result_bytes
        once = None if key is None else IdempotentCall(key, name, checked, identity.auth)
        async with self.turns.turn(holder_of(_person(identity), address), once and once.named):
            answer = await self.reactor.runner.mutate(
                mutation, checked, auth, trace, finish=lambda value: encode(value, most=most), once=once
            )
        if own:
            self.reactor.refresh_own()
        return answer.value, answer

    # Time

    async def _tick(self) -> None:
        """Keep connections alive, and end those that have expired."""
        while True:
            await asyncio.sleep(min(1.0, self.options.keepalive / 4))
            now = self._clock()
            for session in list(self.sessions.values()):
                expires = session.identity.expires_at
                if expires is not None and now >= expires:
                    self._expel(session, "expired")
                elif expires is not None and now >= expires - _WARNING and not session.warned:
                    session.warned = True
                    session.send(Frame("auth", fields(expires_at=expires, renew=True)))
                elif now - session.written >= self.options.keepalive:
                    session.wake()

    def _expel(self, session: Session, reason: str) -> None:
        """End a session: send the reason, and nothing more of its subscriptions."""
        for name in list(session.subscriptions):
            self.unsubscribe(session, name)
        session.send(Frame("auth", fields(reason=reason)))
        session.close(reason)


def _same_person(one: TokenIdentity, other: TokenIdentity) -> bool:
    """Whether two identities are the same user; a user name is unique only within a tenant."""
    return (one.auth.user, one.auth.tenant) == (other.auth.user, other.auth.tenant)


def _person(identity: TokenIdentity) -> tuple[str | None, str] | None:
    """Return the person for limits, with the tenant if any; None for a caller without a user name."""
    auth = identity.auth
    return None if auth.user is None else (auth.tenant, auth.user)
