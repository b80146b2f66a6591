"""Random documents: every strategy tells what brute force derives, and whoever follows the stream has the resource."""

from random import Random
from typing import Any

import pytest

from forge.postgres.connection import Connection
from forge.versions import reading
from forge.versions.available import available
from forge.versions.nouns import Deletion, Json, KeyChange, Resource, Upsert
from forge.versions.reading import changes, pages, representation, stream
from tests.versions.world import STRATEGIES, World, derived, within

SUBJECTS = (None, "ada", "bob")


class Life:
    """Documents of some resources that are made, changed, referred to, renamed, deleted, granted and revoked."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.world, self.random = World(connection), Random(seed)
        self.resources = [self.world.resource(f"kind {n}", by_access=n == 2) for n in range(3)]
        self.documents: dict[int, dict[str, int]] = {}
        self.granted: set[tuple[int, str]] = set()
        self.keys = 0

    def step(self) -> None:
        """One change, of some kind."""
        choice = self.random.random()
        if choice < 0.3 or len(self.documents) < 4:
            references = self._references()
            made = self.world.put(self.random.choice(self.resources), self._key(), references)
            self.documents[made] = references
        elif choice < 0.5:
            self.world.change(self._any())
        elif choice < 0.6:
            changed = self._any()
            self.documents[changed] = self._references()
            self.world.refer(changed, self.documents[changed])
        elif choice < 0.75:
            self.world.rekey({self._any(): self._key() for _ in range(self.random.choice((1, 1, 1, 4)))})
        elif choice < 0.85:
            used = {child for references in self.documents.values() for child in references.values()}
            if free := [document for document in self.documents if document not in used]:
                gone = self.random.choice(free)
                self.world.delete(gone)
                del self.documents[gone]
                self.granted = {(document, subject) for document, subject in self.granted if document != gone}
        else:
            pair = self._any(), self.random.choice(("ada", "bob"))
            (self.world.revoke if pair in self.granted else self.world.grant)(*pair)
            self.granted ^= {pair}

    def _any(self) -> int:
        return self.random.choice(list(self.documents))

    def _references(self) -> dict[str, int]:
        return {f"r{n}": self._any() for n in range(self.random.randrange(4)) if self.documents}

    def _key(self) -> int:
        self.keys += 1
        return self.keys


class Mirror:
    """A copy of a resource that knows only what the stream tells."""

    def __init__(self, resource: Resource, subject: str | None) -> None:
        self.resource, self.subject = resource, subject
        self.known: dict[int, Json] = {}
        self.last: int | None = None

    def sync(self, connection: Connection, limit: int) -> None:
        """Take over what happened since the last time."""
        first, end = None if self.last is None else self.last + 1, available(connection).newest
        if first is not None and first > end:
            return

        def ask(token: str | None) -> Any:
            window = (first, end) if token is None else (None, None)
            return stream(connection, self.resource, *window, after=token, limit=limit, subject=self.subject)

        for page in pages(ask):
            for event in page.items:
                self._take(event)
        self.last = end

    def _take(self, event: Upsert | Deletion | KeyChange) -> None:
        if isinstance(event, Upsert):
            self.known[event.id] = representation(event.document)
        elif isinstance(event, Deletion):
            self.known.pop(event.document, None)
        elif event.document in self.known:
            assert self.known[event.document]["identity"] == event.old_identity
            self.known[event.document] = {**self.known[event.document], "identity": event.new_identity}


@pytest.mark.contract("V8")
@pytest.mark.contract("V4")
@pytest.mark.parametrize("seed", range(2))
def test_every_strategy_tells_what_brute_force_derives(
    versions: Connection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(versions, seed)
    for _ in range(4):
        for _ in range(40):
            life.step()
        newest = available(versions).newest
        for resource in life.resources:
            for subject in SUBJECTS if resource.name == "kind 2" else SUBJECTS[:1]:
                right = derived(versions, resource, subject)
                first = life.random.randint(1, newest)
                last, limit = life.random.randint(first, newest), life.random.choice((1, 3, 1000))
                monkeypatch.setattr(reading, "CANDIDATES", life.random.choice((3, 20, 10_000)))
                monkeypatch.setattr(reading, "FEW", life.random.choice((0, 2, 16)))
                monkeypatch.setattr(reading, "PATIENCE", life.random.choice((0, 1)))
                for strategy in STRATEGIES:
                    life.world.use(strategy)
                    for window in ((first, last), (1, newest)):
                        assert _told(versions, resource, window, limit, subject) == within(right, *window)
                    everything = _told(versions, resource, (None, None), limit, subject)
                    assert everything == sorted(((v, d) for d, v in right.items()), key=lambda item: item[1])


@pytest.mark.contract("V6")
@pytest.mark.parametrize("seed", range(2))
def test_who_follows_the_stream_has_the_resource(versions: Connection, seed: int) -> None:
    life = Life(versions, 100 + seed)
    mirrors = [Mirror(resource, subject) for resource in life.resources for subject in SUBJECTS]
    for turn in range(20):
        for _ in range(10):
            life.step()
        life.world.use(life.random.choice(STRATEGIES))
        for mirror in mirrors:
            if life.random.random() < 0.4 or turn == 19:
                mirror.sync(versions, life.random.choice((1, 2, 50)))
    for mirror in mirrors:
        ask = Mirror(mirror.resource, mirror.subject)
        ask.sync(versions, 1000)
        assert mirror.known == ask.known
        subject = mirror.subject if mirror.resource.name == "kind 2" else None
        assert mirror.known.keys() == derived(versions, mirror.resource, subject).keys()


def _told(
    connection: Connection,
    resource: Resource,
    window: tuple[int | None, int | None],
    limit: int,
    subject: str | None,
) -> list[tuple[int, int]]:
    def ask(token: str | None) -> Any:
        given = window if token is None else (None, None)
        return changes(connection, resource, *given, after=token, limit=limit, subject=subject)

    return [(item.version, item.id) for page in pages(ask) for item in page.items]
