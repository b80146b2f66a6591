"""The store of one process: its bounds, its times, its stamps."""

import pytest

from forge.cache.entry import CacheEntry
from forge.cache.memory import MOST_STAMPS, Memory


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def kept(store: Memory, key: str, version: str, ttl: float = 60.0, size: int = 100) -> bool:
    lease = await store.lease(key)
    assert lease.token is not None
    made = CacheEntry(version, "", "", "q", ("public.t",), dict(lease.stamps or {}), bytes(size), "")
    return await store.put(key, made, ttl, lease.token)


@pytest.mark.contract("M11")
async def test_the_least_recently_used_go_when_there_are_too_many() -> None:
    store = Memory(max_entries=2)
    for key in "ab":
        await kept(store, key, key)
    assert await store.get("a") is not None
    await kept(store, "c", "c")
    assert [await store.get(key) is not None for key in "abc"] == [True, False, True]


async def test_bytes_are_bounded_and_counted() -> None:
    store = Memory(max_bytes=10_000)
    gone: list[str] = []
    store.on_gone = lambda key, entry: gone.append(key)
    for number in range(200):
        await kept(store, str(number), "v", size=number * 7)
        assert store.bytes <= 10_000
    assert not await kept(store, "large", "v", size=10_001)
    assert len(store) + len(gone) == 200
    for number in range(200):
        await store.drop(str(number))
    assert (store.bytes, len(store)) == (0, 0)


@pytest.mark.contract("M11")
async def test_nothing_is_left_of_what_expired() -> None:
    clock = Clock()
    store = Memory(clock=clock)
    for number in range(100):
        await kept(store, str(number), "v", ttl=1 + number % 10)
    clock.now = 5.0
    assert await store.get("0") is None
    assert await store.get("9") is not None
    clock.now = 11.0
    assert len(store) == 0
    assert (store.bytes, store._deadlines) == (0, [])


async def test_writing_one_key_again_and_again_leaves_nothing_behind() -> None:
    store = Memory()
    for number in range(1000):
        await kept(store, "key", str(number))
    assert len(store) == 1
    assert len(store._deadlines) < 100


async def test_an_older_deadline_does_not_end_a_newer_entry() -> None:
    clock = Clock()
    store = Memory(clock=clock)
    await kept(store, "key", "old", ttl=1)
    await kept(store, "key", "new", ttl=10)
    clock.now = 5.0
    found = await store.get("key")
    assert found is not None
    assert found.version == "new"


@pytest.mark.contract("M11")
@pytest.mark.parametrize("stamp", ["t:public.t", "b:t", "n:q", "p:", "p:q"])
async def test_a_stamp_voids_what_it_concerns_also_when_it_is_being_computed(stamp: str) -> None:
    store = Memory()
    await kept(store, "key", "v")
    lease = await store.lease("other")
    store.stamp([stamp])
    assert await store.get("key") is None
    late = CacheEntry("w", "", "", "q", ("public.t",), dict(lease.stamps or {}), b"", "")
    await store.put("other", late, 60, lease.token or "")
    assert await store.get("other") is None


async def test_a_stamp_leaves_others_alone() -> None:
    store = Memory()
    await kept(store, "key", "v")
    store.stamp(["t:public.u", "b:u", "n:r", "p:r"])
    assert await store.get("key") is not None
    store.stamp([])
    assert await store.get("key") is None


async def test_stamps_are_bounded() -> None:
    store = Memory()
    for number in range(3 * MOST_STAMPS):
        store.stamp([f"n:{number}"])
    assert len(store._stamps) <= MOST_STAMPS + 1
