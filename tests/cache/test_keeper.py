"""When an entry may be shown: each condition on its own, without a database."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from forge.cache import recent_changes as ledger_module
from forge.cache.flight import Flights, _Flight
from forge.cache.memory import Memory
from forge.cache.tables import TableMatcher, Tables
from forge.cache.validity import ComputedValue, Shown, ValidCache
from forge.change import Change, ChangeSource, Op
from forge.cursor import NOW, After, Cursor, LogIdentity, Snapshot
from tests.changelog.following import eventually

LOG = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "1", 1)
ORDERS: Tables = ("public.orders",)


class Shared(Memory):
    """A store that keepers share, as if each were on a node of its own."""

    shared = True


class Node:
    """A keeper, the database that it believes in, and how often it was asked."""

    def __init__(self, store: Memory | None = None) -> None:
        self.now = 0.0
        self.keeper: ValidCache[Tables] = ValidCache(
            Memory() if store is None else store, TableMatcher(), clock=lambda: self.now
        )
        self.snapshot = Snapshot(10, 10)
        self.value = b"old"
        self.runs = 0
        self.slow = 0.0
        self.during: Callable[[], None] = lambda: None
        self.musts: list[After] = []
        self.read(10)

    def read(self, xmax: int, *running: int, started: str = "start") -> None:
        self.keeper.read(Cursor(LOG, Snapshot(min(running, default=xmax), xmax, running)), started)

    def write(self, xid: int, value: bytes, table: str = "orders") -> Change:
        """A transaction commits; the log has not told yet."""
        self.snapshot, self.value = Snapshot(xid + 1, xid + 1), value
        source = ChangeSource("log", "x", str(xid), str(xid))
        return Change(str(xid), Op.UPDATE, "public", table, source, datetime.now(UTC), before={}, after={})

    async def run(self, must: After) -> ComputedValue[Tables]:
        self.runs += 1
        self.musts.append(must)
        found = ComputedValue(self.value, "", self.snapshot, ORDERS, ORDERS, 60.0)
        await asyncio.sleep(self.slow)
        self.during()
        return found

    async def ask(self, *after: int) -> bytes:
        return (await self.shown(*after)).value

    async def shown(self, *after: int) -> Shown:
        return await self.keeper.ask("key", "q", self.run, After(frozenset(after)) if after else NOW)


async def test_what_nothing_touched_is_shown_again() -> None:
    node = Node()
    assert [await node.ask(), await node.ask()] == [b"old", b"old"]
    node.keeper.take([node.write(10, b"new", "notes")])
    node.read(11)
    assert await node.ask() == b"old"
    assert node.runs == 1


async def test_a_change_that_the_log_tells_ends_it() -> None:
    node = Node()
    await node.ask()
    change = node.write(10, b"new")
    assert await node.ask() == b"old", "nobody could know"
    node.keeper.take([change])
    assert await node.ask() == b"new"
    node.read(11)
    assert (await node.ask(), node.runs) == (b"new", 2)


async def test_a_change_that_it_shows_does_not_end_it() -> None:
    node = Node()
    change = node.write(10, b"new")
    await node.ask()
    node.keeper.take([change])
    node.read(11)
    assert (await node.ask(), node.runs) == (b"new", 1)


async def test_what_the_asker_wrote_is_shown() -> None:
    node = Node()
    await node.ask()
    node.write(10, b"new")
    assert await node.ask(10) == b"new"
    assert (await node.ask(10), node.runs) == (b"new", 2)


async def test_what_the_asker_wrote_elsewhere_does_not_end_it_once_the_log_has_told() -> None:
    node = Node()
    await node.ask()
    node.keeper.take([node.write(10, b"new", "notes")])
    node.read(11)
    assert (await node.ask(10), node.runs) == (b"old", 1)


async def test_what_the_node_wrote_is_shown_to_everybody() -> None:
    node = Node()
    await node.ask()
    node.write(10, b"new")
    node.keeper.wrote(10, frozenset(ORDERS))
    assert await node.ask() == b"new"
    assert node.musts[-1] == After(frozenset({10})), "a replica must have it"
    node.write(11, b"newer")
    node.keeper.wrote(11, frozenset({"public.notes"}))
    assert await node.ask() == b"new", "another table"
    assert await node.ask(11) == b"new", "also to its writer"
    node.write(12, b"newest")
    node.keeper.wrote(12, None)
    assert await node.ask() == b"newest", "nobody knows which tables"


async def test_a_result_computed_before_a_commit_is_not_kept_after_its_invalidation() -> None:
    node = Node()

    def commit() -> None:
        node.keeper.take([node.write(10, b"new")])
        node.read(11)
        node.during = lambda: None

    node.during = commit
    assert await node.ask() == b"old", "asked before the commit"
    assert node.keeper.metrics.late == 1
    assert await node.ask() == b"new"


@pytest.mark.parametrize("lost", ["lost", "restarted"])
async def test_a_result_computed_while_the_log_was_lost_is_not_kept(lost: str) -> None:
    node = Node()

    def lose() -> None:
        node.during = lambda: None
        if lost == "lost":
            node.keeper.lose()
        else:
            node.read(10, started="again")

    node.during = lose
    await node.ask()
    assert node.keeper.metrics.stored == 0
    node.read(10, started="again" if lost == "restarted" else "start")
    node.read(10, started="again" if lost == "restarted" else "start")
    await node.ask()
    assert (await node.shown()).hit


async def test_while_the_log_is_silent_nothing_is_shown_again() -> None:
    node = Node()
    await node.ask()
    node.now += ledger_module.SILENCE + 1
    node.write(10, b"new")
    assert await node.ask() == b"new"
    assert node.keeper.metrics.bypassed == 1


async def test_another_start_of_the_server_ends_everything() -> None:
    node = Node()
    await node.ask()
    for _ in range(3):
        node.read(10, started="again")
    await node.ask()
    assert node.runs == 2


async def test_an_entry_of_another_node_is_shown_if_all_that_it_lacks_is_known() -> None:
    store = Shared()
    one, two = Node(store), Node(store)
    await one.ask()
    assert (await two.ask(), two.runs) == (b"old", 0)
    late = Node(store)
    late.keeper.ledger.since = Snapshot(12, 12)
    late.value = b"mine"
    assert (await late.ask(), late.runs) == (b"mine", 1), "it may lack 10 or 11, and nobody can tell"


async def test_an_entry_of_another_node_is_held_against_what_came_before_it_was_seen() -> None:
    store = Shared()
    one, two = Node(store), Node(store)
    await one.ask()
    change = one.write(10, b"new")
    two.write(10, b"new")
    two.keeper.take([change])
    two.read(11)
    assert await two.ask() == b"new"
    assert await one.ask() == b"new", "it finds what the other has put there"
    assert (one.runs, two.runs) == (1, 1)


async def test_an_entry_of_another_era_is_not_shown() -> None:
    store = Shared()
    one, two = Node(store), Node(store)
    await one.ask()
    for _ in range(3):
        two.read(10, started="again")
    await two.ask()
    assert two.runs == 1


async def test_who_comes_during_a_run_is_shown_its_result_only_if_it_is_as_new_as_an_entry() -> None:
    node = Node()
    others: list[asyncio.Task[bytes]] = []

    def commit() -> None:
        node.during = lambda: None
        others.append(asyncio.create_task(node.ask()))
        node.keeper.take([node.write(10, b"new")])
        node.read(11)
        node.keeper.wrote(10, frozenset(ORDERS))

    waiting = asyncio.create_task(node.ask())
    node.during = commit
    assert await waiting == b"old"
    assert await others[0] == b"new", "it asked when this was known"
    assert node.runs == 2


async def test_who_needs_more_than_a_run_shows_asks_again() -> None:
    node = Node()
    node.slow = 0.05
    first = asyncio.create_task(node.ask())
    await eventually(lambda: node.runs == 1)
    node.write(10, b"new")
    second = asyncio.create_task(node.ask(10))
    assert (await first, await second) == (b"old", b"new")


async def test_what_the_store_forgets_is_forgotten() -> None:
    node = Node(Memory(max_entries=1))
    await node.keeper.ask("a", "q", node.run)
    await node.keeper.ask("b", "q", node.run)
    node.keeper._store.on_gone = node.keeper.gone
    assert "b" in node.keeper._known
    await node.keeper.ask("c", "q", node.run)
    assert "b" not in node.keeper._known
    assert "c" in node.keeper._known


@pytest.mark.parametrize("store", [Memory, Shared])
async def test_who_comes_after_an_invalidation_is_not_shown_a_run_that_began_before(store: type[Memory]) -> None:
    node = Node(store())
    node.slow = 0.05
    first = asyncio.create_task(node.ask())
    await eventually(lambda: node.runs == 1)
    node.keeper._store.stamp(["b:orders"])
    node.value = b"what the log does not tell"
    second, third = asyncio.create_task(node.ask()), asyncio.create_task(node.ask())
    assert await first == b"old"
    assert [await second, await third] == [b"what the log does not tell"] * 2
    assert node.runs == 2


async def test_a_hundred_are_shown_one_result_though_it_cannot_be_kept() -> None:
    node = Node()
    node.slow = 0.02
    node.keeper._max_entry_bytes = 0
    assert set(await asyncio.gather(*(node.ask() for _ in range(100)))) == {b"old"}
    assert node.runs == 1


async def test_who_comes_in_the_moment_of_landing_begins_anew() -> None:
    flights: Flights[int] = Flights()

    async def fly(number: int) -> int:
        return number

    landed = asyncio.create_task(fly(1))
    await landed
    flights._flights["key"], flights.begun = _Flight(landed, 1), 1  # nobody was told yet
    assert await flights.join("key", lambda: fly(2)) == (2, 2, True)
    await eventually(lambda: not len(flights))
