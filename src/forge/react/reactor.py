"""The reactor: follow the log, find the groups that a change touches, run them again, push changed results.

A group is a query with its arguments and its scope. It runs once, regardless of its number of subscribers.

Invariants:

- No change is lost between a run and the index. A run's read set enters the index when the run ends; changes that
  arrived during the run are then matched against it, unless the run's snapshot contains them.
- A group has one run in flight and at most one waiting. A touch during a run causes one more run.
- Runs that one batch causes for one session use one snapshot.
- A subscriber never gets a result that contains less than the previous one.
- Nothing is pushed when the result is unchanged.
- When the log cannot be followed from the reactor's position (trimmed, failover, a restarted server, a changed table
  definition), every group runs again.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from forge.change import Change, ChangeSource, Op
from forge.changelog.follow import follow
from forge.changelog.reader import Batch
from forge.cursor import NOW, After, Cursor, wal_position
from forge.errors import CursorExpired, CursorForeign, ForgeError, QueryRefused, ServerError, Unexpected
from forge.react.catalog import OWN_SCHEMA, OWN_TABLES
from forge.react.debounce import Debounce
from forge.react.group import Group, GroupKey, ReactorMetrics, Settings
from forge.react.index import BoundRead, Index
from forge.react.push import MOST_CAUSES, Push, RunCause, Subscriber
from forge.react.registry import Auth, Call
from forge.react.result import Result, encode
from forge.react.runner import Reached, Runner, RunOutcome
from forge.tasks import spawn

MOST_RECENT: Final = 10_000
"""Maximum number of changes kept for runs in flight; beyond it, every such run is repeated."""

_log = logging.getLogger(__name__)

ActorShown = Callable[[Auth, Change], bool]
"""Tells whether callers with this scope may see who made a change, and through which function and trace."""


class Reactor:
    """Groups, the index of their reads, and the tasks that keep their results fresh."""

    def __init__(
        self,
        runner: Runner,
        url: str,
        settings: Settings = Settings(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner = runner
        self.settings = settings
        self.metrics = ReactorMetrics()
        self.groups: dict[GroupKey, Group] = {}
        self.reached: Reached | None = None
        self.following = False
        """Whether the reactor is following the log."""
        self.on_batch: list[Callable[[Batch], None]] = []
        """Called with every batch of the log, as soon as it is read."""
        self.on_read: list[Callable[[Cursor, str], None]] = []
        """Called after every read of the log, once its changes are matched: with the cursor and the server start."""
        self.on_push: list[Callable[[Group, Push], None]] = []
        """Called with every fresh result, after its subscribers have it."""
        self.on_latency: Callable[[str, float], None] = lambda stage, seconds: None
        self.actors: Callable[[Batch, bool], ActorShown] = lambda batch, whole: lambda auth, change: True
        """Decides which scopes may see a batch's actors; the flag tells whether its transactions are complete."""
        self.url = url
        self._clock = clock
        self._index: Index[GroupKey] = Index()
        self._debounce: Debounce[GroupKey] = Debounce(settings.quiet, settings.longest)
        self._room = asyncio.Semaphore(settings.runs)
        self._recent: deque[tuple[int, list[Change], ActorShown]] = deque()
        self._recent_size = 0
        self._batch = 0
        self._inside = False
        """Whether more of the last batch's transactions follow in the next batch."""
        self._inflight: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = asyncio.Event()
        self._stopping = False
        self._lost = False
        self._checking = False
        self._noted: set[str] = set()
        self._watched = False
        """Whether a query has read one of Forge's own tables."""
        self._counted = 0
        """Number of groups, without the groups of Forge's own queries."""

    async def start(self) -> None:
        """Start to follow the log; return once it is being followed."""
        await self.runner.open()
        following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spawn(self._follow(following))
        try:
            await asyncio.wait_for(following, 60)
        except BaseException:
            await self.stop()
            raise
        # only at this point: a replica must have passed the start of the followed log
        self.reached = self.reached or await self.runner.reached()
        self._spawn(self._flush_for_ever())
        self._spawn(self._look_after())

    async def stop(self) -> None:
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.runner.close()

    def subscribe(self, call: Call, subscriber: Subscriber) -> Group:
        """Add a subscriber; it gets a push at once if there is a result, otherwise when the first run ends."""
        group = self.groups.get(call.group)
        if group is None:
            group = self.groups[call.group] = Group(call)
            group.stale = True
            self._counted += not call.query.own
        group.subscribers.add(subscriber)
        if group.result is not None and not group.stale and group.error is None:
            subscriber.push(Push(group.result, None, group.coverage, (), 0))
            return group
        group.newcomers.add(subscriber)
        if group.stale:
            group.stale = False
            self._start([group])
        elif group.error is not None:
            subscriber.fail(group.error)
        return group

    def unsubscribe(self, group: Group, subscriber: Subscriber) -> None:
        """Remove a subscriber; a group without subscribers is dropped after an idle time."""
        group.subscribers.discard(subscriber)
        group.newcomers.discard(subscriber)
        if not group.subscribers:
            group.idle_since = self._clock()

    async def once(self, call: Call, after: After = NOW) -> tuple[Result, RunOutcome]:
        """Return the current result without a subscription; it contains the transactions that `after` requires."""
        reached = self.reached
        if reached is not None and not after.seen(reached.snapshot):
            reached = None  # a replica at that position might not contain them
        outcome = await self.runner.query(call, reached=reached)
        return self._encoded(call, outcome), outcome

    def resync(self) -> None:
        """Run every group again."""
        self.metrics.resyncs += 1
        now = self._clock()
        for key, group in self.groups.items():
            group.forced = True
            self._debounce.touch(key, now)
        self._due.set()

    def own_changed(self, tables: Iterable[str]) -> None:
        """Run the groups again that read these Forge tables."""
        now = self._clock()
        for table in tables:
            change = Change("", Op.INVALIDATE, OWN_SCHEMA, table, ChangeSource("own", "", "0"), datetime.now(UTC))
            for key in self._index.touched(change):
                self.groups[key].forced = True
                self._debounce.touch(key, now)
        self._due.set()

    def refresh_own(self) -> None:
        """Run all groups of Forge's own queries again."""
        now = self._clock()
        for key, group in self.groups.items():
            if group.call.query.own:
                group.forced = True
                self._debounce.touch(key, now)
        self._due.set()

    # Following

    async def _follow(self, following: asyncio.Future[None]) -> None:
        while True:
            self._inside = False
            batches = follow(
                self.url,
                wakeup=self.settings.wakeup,
                durable=False,
                on_open=lambda restarted: self._opened(restarted, following),
                on_read=self._read,
            )
            try:
                async with contextlib.aclosing(batches):
                    async for batch in batches:
                        self._take(batch)
            except (CursorExpired, CursorForeign) as error:
                _log.warning("the log cannot be followed from where it was left, all queries run again: %s", error)
            except ForgeError as error:
                if not following.done():
                    following.set_exception(error)
                    return
                _log.error("the log cannot be followed, trying again: %s (fix: %s)", error, error.fix)
                await asyncio.sleep(random.uniform(0.5, 1.5))
            except Exception:
                _log.exception("following the log failed, trying again")
                await asyncio.sleep(random.uniform(0.5, 1.5))
            self._lost, self.following = True, False

    def _opened(self, restarted: bool, following: asyncio.Future[None]) -> None:
        """The log is followed from here. Running all groups finds changes that were missed or lost in a crash."""
        self.following = True
        if restarted or self._lost:
            self._lost = False
            self.reached = None  # until a batch gives the position that a replica needs, the primary answers
            self.runner.forget()
            self.resync()
        if not following.done():
            following.set_result(None)

    def _read(self, cursor: Cursor, started: str) -> None:
        for observer in self.on_read:
            observer(cursor, started)

    def _take(self, batch: Batch) -> None:
        """Match a batch; this blocks the event loop only briefly, for any number of groups."""
        self.reached = Reached(batch.cursor.until or batch.cursor.snapshot, wal_position(batch.lsn))
        self._batch += 1
        now = self._clock()
        for observer in self.on_batch:
            observer(batch)
        inside, self._inside = self._inside, batch.cursor.last is not None
        shown = self.actors(batch, not inside and not self._inside)
        metrics = self.metrics
        groups = self.groups
        defined = False
        for change in batch.changes:
            metrics.changes += 1
            if change.op is Op.SCHEMA:
                defined = True
                continue
            transaction = int(change.source.transaction or 0)
            touched = self._index.touched(change)
            metrics.pruned += self._counted - len(touched)
            for key in touched:
                group = groups.get(key)
                if group is None or (not group.running and group.coverage.sees(transaction)):
                    continue
                metrics.touched += 1
                group.touch(change, transaction, actor=shown(group.call.auth, change))
                self._debounce.touch(key, now)
        if batch.changes:
            if self._watched:
                self._touch_own(batch.changes, shown, now)
            self.on_latency("commit_to_batch", time.time() - batch.changes[-1].at.timestamp())
        if defined:
            self.runner.forget()
            self.resync()
        self._remember(batch.changes, shown)
        if len(self._debounce):
            self._due.set()

    def _touch_own(self, changes: list[Change], shown: ActorShown, now: float) -> None:
        """Touch the groups of Forge's own tables: every change also changes the log and other Forge tables."""
        latest = {change.source.transaction: change for change in changes}
        for change in latest.values():
            transaction = int(change.source.transaction or 0)
            for table in OWN_TABLES:
                own = msgspec.structs.replace(change, op=Op.INVALIDATE, schema=OWN_SCHEMA, table=table, key=None)
                for key in self._index.touched(own):
                    group = self.groups[key]
                    group.touch(change, transaction, actor=shown(group.call.auth, change))
                    self._debounce.touch(key, now)

    def _remember(self, changes: list[Change], shown: ActorShown) -> None:
        if not self._inflight:
            self._recent.clear()
            self._recent_size = 0
            return
        self._recent.append((self._batch, changes, shown))
        self._recent_size += len(changes)
        oldest = min(self._inflight.values())
        while self._recent and self._recent[0][0] <= oldest:
            self._recent_size -= len(self._recent.popleft()[1])
        if self._recent_size > MOST_RECENT:
            self._recent.clear()
            self._recent_size = 0
            now = self._clock()
            for key, group in self.groups.items():
                if group.running:
                    group.forced = True
                    self._debounce.touch(key, now)

    # Running

    async def _flush_for_ever(self) -> None:
        while True:
            due = self._debounce.next_due()
            if due is None:
                self._due.clear()
                await self._due.wait()
                continue
            delay = due - self._clock()
            if delay > 0:
                await asyncio.sleep(delay)
            due_now = self._debounce.due(self._clock())
            ready = [group for key in due_now if (group := self.groups.get(key)) is not None and not group.settled()]
            own = [group for group in ready if group.call.query.own]  # they may be slow, and share no snapshot
            for together in (*([group] for group in own), *_by_session([group for group in ready if group not in own])):
                self._start(together)

    def _place(self, call: Call) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a slot among the live runs. Forge's own queries may be slow, so they take no slot."""
        return contextlib.nullcontext() if call.query.own else self._room

    def _start(self, groups: list[Group]) -> None:
        """Run these groups on one snapshot; groups that are already running run once more."""
        if self._stopping:
            return
        ready = []
        for group in groups:
            if group.running:
                group.waiting = True
            elif group.subscribers:
                group.running = True
                ready.append(group)
            else:
                group.stale = True
        if ready:
            self._spawn(self._run(ready))

    async def _run(self, groups: list[Group]) -> None:
        # before any snapshot is taken: later touches may not be in it
        runs = [_Run(group, *group.begin(), self._batch) for group in groups]
        for group in groups:
            if group.touched_at is not None:
                self.on_latency("debounce", time.monotonic() - group.touched_at)
                group.touched_at = None
        token = id(runs)
        self._inflight[token] = self._batch
        try:
            if len(runs) == 1:
                await self._run_one(runs[0], None)
            else:
                await self._run_together(runs)
        finally:
            del self._inflight[token]
            for group in groups:
                group.running = False
                waiting, group.waiting = group.waiting, False
                if waiting and not group.settled():
                    self._start([group])

    async def _run_together(self, runs: "list[_Run]") -> None:
        try:
            async with self.runner.shared_snapshot() as snapshot:
                await asyncio.gather(*(self._run_one(run, snapshot) for run in runs))
        except ForgeError as error:
            for run in runs:
                self._failed(run, error, [])

    async def _run_one(self, run: "_Run", snapshot: str | None) -> None:
        group, causes, more, began = run
        started = self._clock()
        reads: list[BoundRead] = []
        try:
            async with self._place(group.call):
                outcome = await self.runner.query(
                    group.call, reached=self.reached, floor=group.lsn, snapshot=snapshot, reads=reads, live=True
                )
            result = self._encoded(group.call, outcome)
        except ForgeError as error:
            self._failed(run, error, reads)
            return
        except BaseException as error:
            task = asyncio.current_task()
            if self._stopping or (task is not None and task.cancelling()):
                raise
            # includes a CancelledError from something else that the function awaited
            _log.exception("%s failed", group.call.query.name)
            told = Unexpected(f"{group.call.query.name} failed: {type(error).__name__}", fix="see the log")
            self._failed(run, told, reads)
            return
        own = group.call.query.own
        took = self._clock() - started
        group.runs, group.took, group.ran_at = group.runs + 1, took, time.time()
        if not own:
            self.metrics.runs += 1
            self.on_latency("run", took)
        if self.groups.get(group.key) is not group:
            return
        group.backoff.reset()
        recovered, group.error = group.error is not None, None
        self._note_volatile(group, outcome)
        group.coverage = outcome.coverage
        group.lsn = max(group.lsn, outcome.lsn)
        group.refreshed = self._clock()
        group.reads = outcome.reads
        self._watched = self._watched or any(read.schema == OWN_SCHEMA for read in outcome.reads)
        self._index.put(group.key, outcome.reads)
        self._catch_up(group, outcome.reads, began)
        covered = group.covered()
        room = MOST_CAUSES - len(causes)
        causes, more = (*causes, *covered[:room]), more + len(covered[room:])
        previous, group.result = group.result, result
        newcomers, group.newcomers = group.newcomers, set()
        if previous is not None and previous.hash == result.hash:
            group.wasted += 1
            self.metrics.wasted += not own
            for subscriber in list(group.subscribers) if recovered else newcomers:
                self._hand(subscriber, Push(result, None, outcome.coverage, (), 0))
            return
        group.pushed += 1
        self.metrics.pushed += not own
        push = Push(result, previous, outcome.coverage, causes, more)
        if causes:
            self.on_latency("commit_to_push", time.time() - causes[0].at.timestamp())
        pushing = time.monotonic()
        for subscriber in list(group.subscribers):
            self._hand(subscriber, push)
        self.on_latency("push", time.monotonic() - pushing)
        for observer in self.on_push:
            observer(group, push)

    @staticmethod
    def _hand(subscriber: Subscriber, push: Push) -> None:
        """Push to one subscriber; its failure does not stop the pushes to others."""
        try:
            subscriber.push(push)
        except Exception:
            _log.exception("a subscriber failed")

    def _note_volatile(self, group: Group, outcome: RunOutcome) -> None:
        name = group.call.query.name
        if outcome.volatile and group.call.query.refresh_every is None and name not in self._noted:
            self._noted.add(name)
            reason = ", ".join(sorted(outcome.volatile))
            _log.warning("%s uses %s, which changes without a write: give it refresh_every", name, reason)

    def _catch_up(self, group: Group, reads: Iterable[BoundRead], began: int) -> None:
        """Match changes that arrived during the run against its read set."""
        later = [(change, shown) for number, changes, shown in self._recent if number > began for change in changes]
        if not later:
            return
        own: Index[Hashable] = Index()
        own.put(None, reads)
        watched = any(read.schema == OWN_SCHEMA for read in reads)
        now = self._clock()
        for change, shown in later:
            transaction = int(change.source.transaction or 0)
            if transaction in group.unseen or group.coverage.sees(transaction):
                continue
            if watched or own.touched(change):
                group.touch(change, transaction, actor=shown(group.call.auth, change))
                self._debounce.touch(group.key, now)
                self._due.set()

    def _encoded(self, call: Call, outcome: RunOutcome) -> Result:
        return encode(outcome.value, key=call.query.key, most=self.settings.max_result_bytes)

    def _failed(self, run: "_Run", error: ForgeError, reads: Sequence[BoundRead]) -> None:
        """Report the error to the subscribers. A change of the run's old or new reads may fix it."""
        group = run.group
        group.failed += 1
        self.metrics.failed += not group.call.query.own
        group.refreshed = self._clock()
        group.error = error
        for subscriber in list(group.subscribers):
            subscriber.fail(error)
        if isinstance(error, ServerError):
            if group.retry is not None:
                group.retry.cancel()
            group.retry = asyncio.get_running_loop().call_later(group.backoff.next(), self._again, group)
        elif isinstance(error, QueryRefused):
            if group.result is None:
                self._drop(group)
        elif self.groups.get(group.key) is group:
            self._index.put(group.key, [*group.reads, *reads])
            self._catch_up(group, reads, run.began)

    def _again(self, group: Group) -> None:
        if not self._stopping and self.groups.get(group.key) is group:
            self._start([group])

    # Maintenance

    async def _look_after(self) -> None:
        """Drop idle groups, run all groups again at intervals, and keep checking one group at a time."""
        resynced = checked = self._clock()
        while True:
            await asyncio.sleep(min(1.0, self.settings.check, self.settings.resync))
            now = self._clock()
            for group in list(self.groups.values()):
                every = group.call.query.refresh_every
                if not group.subscribers and not group.running and now - group.idle_since > self.settings.idle:
                    self._drop(group)
                elif every is not None and not group.running and now - group.refreshed >= every:
                    self._start([group])
            if now - resynced >= self.settings.resync:
                resynced = now
                self.resync()
            if now - checked >= self.settings.check and not self._checking:
                checked = now
                self._checking = True
                self._spawn(self._check_one())

    async def _check_one(self) -> None:
        """Run a random untouched group; if its result differs, a change was missed."""
        try:
            await self._check(random.choice(list(self.groups.values())) if self.groups else None)
        finally:
            self._checking = False

    async def _check(self, group: Group | None) -> None:
        if group is None or group.result is None or group.busy() or not group.subscribers or group.call.query.own:
            return
        known = group.result
        outcome = await self._differing(group.call, known)
        self.metrics.checked += 1
        if outcome is None or outcome.volatile or group.call.query.reads:
            return
        # the run may contain changes that are not yet read from the log
        deadline = self._clock() + 30.0
        while group.result is known and self._clock() < deadline:
            if self.reached and self.reached.snapshot.xmin >= outcome.coverage.xmax and group.settled():
                break
            await asyncio.sleep(0.05)
        # a run that waited for a table rewrite (ALTER … TYPE) sees that table empty, as PostgreSQL documents
        if group.result is known and await self._differing(group.call, known) is None:
            return
        if group.result is known and not group.busy() and self.groups.get(group.key) is group:
            self.metrics.missed += 1
            _log.error("a change of %s was missed; it runs again", group.call.query.name)
            self._start([group])

    async def _differing(self, call: Call, known: Result) -> RunOutcome | None:
        """Return the outcome of a run; None if it equals the known result or the run fails."""
        try:
            outcome = await self.runner.query(call, live=True)
            found = self._encoded(call, outcome)
        except ForgeError:
            return None
        return outcome if sorted(found.rows) != sorted(known.rows) else None

    def _drop(self, group: Group) -> None:
        if self.groups.get(group.key) is group:
            del self.groups[group.key]
            self._counted -= not group.call.query.own
            self._index.remove(group.key)
            self._debounce.drop(group.key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        spawn(work, self._tasks, _log)


class _Run(NamedTuple):
    """A run of a group that has started: its causes, and the last batch read before it started."""

    group: Group
    causes: tuple[RunCause, ...]
    more: int
    began: int


def _by_session(groups: list[Group]) -> list[list[Group]]:
    """Partition the groups into sets that share no session with each other."""
    if len(groups) == 1:
        return [groups]
    leader: dict[GroupKey, GroupKey] = {group.key: group.key for group in groups}

    def lead(key: GroupKey) -> GroupKey:
        while leader[key] != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    first: dict[Hashable, GroupKey] = {}
    for group in groups:
        for subscriber in group.subscribers:
            other = first.setdefault(subscriber.session, group.key)
            leader[lead(group.key)] = lead(other)
    found: dict[GroupKey, list[Group]] = {}
    for group in groups:
        found.setdefault(lead(group.key), []).append(group)
    return list(found.values())
