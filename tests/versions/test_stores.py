"""The same on every database: the worked example, every strategy as brute force derives, pages, access, the newest.

On PostgreSQL always; on SQL Server where `FORGE_TEST_SQLSERVER_URL` names one (see tests/versions/mssql.py).
"""

import re
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
import sqlglot
from sqlglot import ErrorLevel, exp

from forge.cli.versions import sqlserver_script
from forge.errors import WindowExpired
from forge.postgres.connection import Connection
from forge.versions.strategies import STRATEGIES, Strategy
from tests.versions.mssql import STATEMENTS, TYPES, UNSET, URL, batches, declared, sqlserver_store
from tests.versions.stores import Item, Kind, PostgresStore, Store, derived, within

KINDS = ("schools", "courses", "plans")
"""The last is by access."""
SUBJECTS = ("ada", "bob")
ASKED: list[tuple[str, str | None]] = [(kind, None) for kind in KINDS] + [(KINDS[-1], subject) for subject in SUBJECTS]
"""A resource, and who asks for it: None sees all."""


@pytest.fixture(params=["postgresql", "sqlserver"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "sqlserver" and URL is None:
        pytest.skip(UNSET)
    if request.param == "sqlserver":
        with sqlserver_store() as made:
            yield made
    else:
        connection: Connection = request.getfixturevalue("versions")
        yield PostgresStore(connection, request.getfixturevalue("versions_url"))


def told(
    store: Store,
    kind: Kind,
    resource: str,
    window: tuple[int, int],
    limit: int = 100,
    strategy: Strategy = "journal",
    subject: str | None = None,
) -> list[tuple[int, int]]:
    found = store.pages(kind, resource, window, limit, strategy=strategy, subject=subject)
    return [item for page in found for item in page]


class Life:
    """Documents of three resources that are made, changed, referred to, renamed, deleted, granted and revoked."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random = store, Random(seed)
        for name in KINDS:
            store.declare(name, by_access=name == KINDS[-1])
        self.documents: dict[int, dict[str, int]] = {}
        self.keys = 0
        self.deleted: set[int] = set()
        self.resources: dict[int, str] = {}
        self.granted: set[tuple[str, int]] = set()
        self.renamed: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int, str | None]] = []
        """Version, document, and whose access it was: None of what was deleted, for all."""

    def step(self) -> None:
        """One change, of some kind."""
        choice = self.random.random()
        if choice < 0.3 or len(self.documents) < 4:
            references, resource = self._references(), self.random.choice(KINDS)
            made = self.store.put(resource, self._key(), references)
            self.documents[made], self.resources[made] = references, resource
        elif choice < 0.5:
            self.store.change(self._any(), {"n": self.random.randrange(3)})
        elif choice < 0.6:
            changed = self._any()
            self.documents[changed] = self._references()
            self.store.refer(changed, self.documents[changed])
        elif choice < 0.75:
            self.rename(self._any())
        elif choice < 0.85:
            used = {child for references in self.documents.values() for child in references.values()}
            if free := sorted(self.documents.keys() - used):
                gone = self.random.choice(free)
                self.store.delete(gone)
                del self.documents[gone]
                self.deleted.add(gone)
                whose = [subject for subject, document in self.granted if document == gone]
                self.granted -= {(subject, gone) for subject in whose}
                self.lost += [(self.store.newest(), gone, subject) for subject in (None, *whose)]
        else:
            act = self.grant if self.random.random() < 0.6 else self.revoke
            act(self._any(), self.random.choice(SUBJECTS))

    def rename(self, document: int) -> None:
        self.store.rename(document, self._key())
        self.renamed.append((self.store.newest(), document))

    def grant(self, document: int, subject: str) -> None:
        self.store.grant(document, subject)
        self.granted.add((subject, document))

    def revoke(self, document: int, subject: str) -> None:
        self.store.revoke(document, subject)
        if (subject, document) in self.granted:
            self.granted.remove((subject, document))
            self.lost.append((self.store.newest(), document, subject))

    def happened(self, resource: str, window: tuple[int, int], subject: str | None) -> list[Item]:
        """All that a stream has to tell, by what was done."""
        rows = self.store.rows()
        upserts = [(*found, 2) for found in within(derived(rows, resource, subject), window)]
        keys = [
            (version, document, 0)
            for version, document in self.renamed
            if subject is None or rows.access.get((subject, document), version) < version
        ]
        lost = [
            (version, document, 1)
            for version, document, whose in self.lost
            if whose == subject and (whose, document) not in rows.access
        ]
        others = [
            item for item in keys + lost if self.resources[item[1]] == resource and window[0] <= item[0] <= window[1]
        ]
        return sorted(upserts + others)

    def _any(self) -> int:
        return self.random.choice(sorted(self.documents))

    def _references(self) -> dict[str, int]:
        return {f"r{n}": self._any() for n in range(self.random.randrange(4)) if self.documents}

    def _key(self) -> dict[str, Any]:
        self.keys += 1
        return {"key": self.keys}


@pytest.mark.contract("V1", "V4", "V9")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_worked_example(store: Store, strategy: Strategy) -> None:
    """A student's identity changes at 100, and the plan that refers to it is told; nothing of the plan was written."""
    store.declare("students")
    store.declare("plans")
    student = store.put("students", {"studentUniqueId": "604821"})
    plan = store.put("plans", {"year": 2026}, {"student": student})
    assert told(store, "changes", "plans", (1, store.newest()), strategy=strategy) != []
    store.next_stamp(100)
    before = store.rows().documents[plan]
    store.rename(student, {"studentUniqueId": "604999"})
    assert store.newest() == 100
    assert store.rows().documents[plan] == before
    for resource, document in (("plans", plan), ("students", student)):
        assert told(store, "changes", resource, (99, 100), strategy=strategy) == [(100, document)]
        assert told(store, "changes", resource, (1, 99), strategy=strategy) == []
    assert told(store, "key_changes", "students", (99, 100)) == [(100, student)]
    assert told(store, "key_changes", "plans", (99, 100)) == []
    assert store.identities(plan) == {"student": {"studentUniqueId": "604999"}}


@pytest.mark.contract("V2", "V9")
def test_identities_that_contain_it_follow_with_the_same_stamp(store: Store) -> None:
    """A diamond: a plan contains two courses, which contain one school; who merely refers to it is not written."""
    for name in ("schools", "courses", "plans", "students"):
        store.declare(name)
    school = store.put("schools", {"id": 1})
    one, two = (store.put("courses", {"code": code}, {"school": school}, ["school"]) for code in "ab")
    plan = store.put("plans", {"year": 2026}, {"first": one, "second": two, "aside": school}, ["first", "second"])
    aside = store.put("students", {"id": 7}, {"plan": plan})
    before, newest = store.rows().documents, store.newest()
    store.rename(school, {"id": 2})
    stamp = store.newest()
    assert stamp == newest + 1
    inner = {"school": {"id": 2}}
    assert store.identity(plan) == {"year": 2026, "first": {"code": "a", **inner}, "second": {"code": "b", **inner}}
    assert store.identities(aside) == {"plan": store.identity(plan)}
    moved = {school, one, two, plan}
    assert store.rows().documents == {
        id: (name, content, stamp if id in moved else identity) for id, (name, content, identity) in before.items()
    }
    for resource, documents in {"schools": [school], "courses": [one, two], "plans": [plan]}.items():
        assert told(store, "key_changes", resource, (stamp, stamp)) == [(stamp, document) for document in documents]
    for strategy in STRATEGIES:
        assert told(store, "changes", "students", (stamp, stamp), strategy=strategy) == [(stamp, aside)]
        assert told(store, "changes", "courses", (stamp, stamp), 1, strategy) == [(stamp, one), (stamp, two)]


@pytest.mark.contract("V4", "V8", "V9")
def test_every_strategy_tells_what_brute_force_derives(store: Store) -> None:
    life = Life(store, 3)
    for _ in range(3):
        for _ in range(25):
            life.step()
        newest, rows = store.newest(), store.rows()
        first = life.random.randint(1, newest)
        windows = (1, newest), (first, life.random.randint(first, newest))
        for strategy, window, resource in product(STRATEGIES, windows, KINDS):
            found = told(store, "changes", resource, window, life.random.choice((3, 100)), strategy)
            assert found == within(derived(rows, resource), window), (strategy, resource, window)
        for window, subject in product(windows, SUBJECTS):
            found = told(store, "changes", KINDS[-1], window, life.random.choice((3, 100)), subject=subject)
            assert found == within(derived(rows, KINDS[-1], subject), window), (subject, window)
    gone = [document for kind in KINDS for _, document in told(store, "deletes", kind, (1, store.newest()), 2)]
    assert sorted(gone) == sorted(life.deleted)
    assert life.deleted


@pytest.mark.contract("V4", "V9")
def test_a_strategy_is_changed_in_the_midst_of_life(store: Store) -> None:
    """What was there before is filled, three documents at a time, and what comes then is kept."""
    life = Life(store, 11)
    for _ in range(40):
        life.step()
    for strategy in ("monotonic", "denormalized", "monotonic", "journal"):
        store.use_strategy(strategy, 3)
        assert store.strategy() == strategy
        for _ in range(2):
            newest, rows = store.newest(), store.rows()
            for resource in KINDS:
                found = told(store, "changes", resource, (1, newest), 4, strategy)
                assert found == within(derived(rows, resource), (1, newest)), (strategy, resource)
            for _ in range(12):
                life.step()


@pytest.mark.contract("V4", "V6", "V9")
def test_the_stream_has_all_that_happened_in_order(store: Store) -> None:
    life = Life(store, 5)
    for _ in range(60):
        life.step()
    seen = next(document for document in sorted(life.documents) if life.resources[document] == KINDS[-1])
    life.grant(seen, "ada")
    life.grant(seen, "bob")
    life.rename(seen)
    life.revoke(seen, "ada")
    newest = store.newest()
    first = life.random.randint(1, newest)
    kinds = set()
    for window, limit in product(((1, newest), (first, newest - 3)), (2, 100)):
        for resource, subject in ASKED:
            found = [item for page in store.stream(resource, window, limit, subject=subject) for item in page]
            assert found == life.happened(resource, window, subject), (resource, window, subject)
            kinds |= {(subject is None, kind) for _, _, kind in found}
    assert len(kinds) == 6


@pytest.mark.contract("V4", "V6", "V9")
def test_a_copy_begins_with_everything_up_to_a_version(store: Store) -> None:
    life = Life(store, 7)
    for _ in range(50):
        life.step()
    seen = [document for document in sorted(life.documents) if life.resources[document] == KINDS[-1]]
    life.grant(seen[0], "bob")
    newest, rows = store.newest(), store.rows()
    for upto, limit in product((newest, newest // 2), (2, 100)):
        for resource, subject in ASKED:
            found = [item for page in store.everything(resource, upto, limit, subject=subject) for item in page]
            wanted = sorted(derived(rows, resource, subject).items())
            assert found == [(version, document) for document, version in wanted if version <= upto]
            assert found or upto < newest or subject == "ada"


@pytest.mark.contract("V7", "V9")
def test_a_window_that_is_cut_off_between_its_pages_is_expired(store: Store) -> None:
    store.declare("plans")
    plans = [store.put("plans", {"n": n}) for n in range(3)]
    store.next_stamp(25_000_000)
    plans.append(store.put("plans", {"n": 3}))
    newest = store.newest()
    found, streamed = store.pages("changes", "plans", (1, newest), 2), store.stream("plans", (1, newest), 2)
    assert [document for _, document in next(found)] == plans[:2]
    assert [document for _, document, _ in next(streamed)] == plans[:2]
    store.retain(20_000_000)
    for rest in (found, streamed):
        with pytest.raises(WindowExpired) as error:
            next(rest)
        assert error.value.oldest == 20_000_000
    assert told(store, "changes", "plans", (20_000_000, newest)) == [(newest, plans[3])]
    assert [document for page in store.everything("plans", newest, 2) for _, document in page] == plans


@pytest.mark.contract("V4", "V9")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pages_skip_and_repeat_nothing_that_stays(store: Store, strategy: Strategy) -> None:
    """Between the pages others change what comes, what was told, and what those refer to."""
    store.declare("students")
    store.declare("plans")
    students = [store.put("students", {"n": n}) for n in range(4)]
    plans = [store.put("plans", {"n": n}, {"student": students[n % 4]}) for n in range(12)]
    newest = store.newest()
    found = store.pages("changes", "plans", (1, newest), 2, strategy=strategy)
    seen = [document for _, document in next(found)]
    assert seen == plans[:2]
    store.change(plans[0], {"changed": "after it was told"})
    store.change(plans[5], {"changed": "before it would be"})
    store.rename(students[3], {"n": 33})
    store.put("plans", {"n": 99}, {"student": students[0]})
    seen += [document for page in found for _, document in page]
    stay = [plan for n, plan in enumerate(plans) if n % 4 != 3 and n not in (0, 5)]
    assert seen == [plans[0], *stay]
    later = told(store, "changes", "plans", (newest + 1, store.newest()), 2, strategy)
    assert {document for _, document in later} >= {plans[n] for n in (0, 3, 5, 7, 11)}
    assert later == within(derived(store.rows(), "plans"), (newest + 1, store.newest()))


@pytest.mark.contract("V6", "V9")
def test_who_is_given_access_sees_it_and_who_loses_it_is_told(store: Store) -> None:
    store.declare("plans", by_access=True)
    plan, other = (store.put("plans", {"n": n}) for n in range(2))
    store.grant(other, "ada")
    before = store.newest()
    store.grant(plan, "ada")
    given = store.newest()
    assert given > before
    assert told(store, "changes", "plans", (before + 1, given), subject="ada") == [(given, plan)]
    assert told(store, "changes", "plans", (1, given), subject="eve") == []
    store.rename(plan, {"n": 7})
    renamed = store.newest()
    assert told(store, "key_changes", "plans", (1, renamed), subject="ada") == [(renamed, plan)]
    assert told(store, "key_changes", "plans", (1, renamed), subject="eve") == []
    store.revoke(plan, "ada")
    lost = store.newest()
    assert told(store, "changes", "plans", (given, lost), subject="ada") == []
    assert told(store, "deletes", "plans", (given, lost), subject="ada") == [(lost, plan)]
    assert told(store, "deletes", "plans", (1, lost)) == []
    store.delete(other)
    assert told(store, "deletes", "plans", (lost + 1, store.newest()), subject="ada") == [(store.newest(), other)]


@pytest.mark.contract("V5", "V9")
def test_a_lower_stamp_that_is_not_committed_holds_the_newest_back(store: Store) -> None:
    store.declare("plans")
    store.put("plans", {"n": 0})
    settled = store.newest()
    with store.another() as slow:
        with slow.transaction():
            slow.put("plans", {"n": 1})
            store.put("plans", {"n": 2})
            assert store.newest() == settled
        assert store.newest() == settled + 2
    assert len(told(store, "changes", "plans", (settled + 1, settled + 2))) == 2


@pytest.mark.contract("V9")
@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_what_is_sent_to_sql_server_is_t_sql(name: str) -> None:
    """Without a server at least a parser reads it, with the parameters that come before it."""
    given = {parameter: 1 for parameter in TYPES if parameter != "version"}
    text = re.sub(r"%\(\w+\)s", "NULL", declared(STATEMENTS[name], given))
    found = [one for one in sqlglot.parse(text, dialect="tsql", error_level=ErrorLevel.RAISE) if one is not None]
    commands = [one for one in found if isinstance(one, exp.Command)]
    assert [one.this.upper() for one in commands] in ([], ["EXEC"])
    assert len(found) >= 2


def test_the_script_is_cut_as_sqlcmd_does() -> None:
    found = batches(sqlserver_script())
    assert len(found) > 30
    assert not any(re.search(r"^GO$", batch, re.MULTILINE) for batch in found)
    assert not any("%" in batch for batch in found)
