"""Who is given access sees old documents as changed; who loses it is told that they are no more."""

import random

import psycopg
import pytest

from forge.errors import DocumentInvalid, UnknownDocument, UnknownResource
from forge.postgres.connection import Connection, connect
from forge.versions import access, operation
from forge.versions.access import grant, revoke
from forge.versions.documents import delete, put
from forge.versions.identity import change_identity
from forge.versions.nouns import Deletion, Document, KeyChange, Resource, Upsert
from forge.versions.reading import stream
from forge.versions.resources import declare, resources
from forge.versions.stamps import newest
from forge.versions.strategies import STRATEGIES, Strategy, use_strategy
from tests.versions.aside import behind
from tests.versions.journals import SCHOOLS, STUDENTS, journals, last_stamp


@pytest.fixture
def student(versions: Connection) -> Document:
    """A document of a resource by access, whose last change is older than all that follows."""
    declare(versions, STUDENTS, by_access=True)
    made = put(versions, STUDENTS, {"id": 7}, {}, {"school": put(versions, SCHOOLS, {"id": 1}, {}).document}).document
    put(versions, STUDENTS, {"id": 8}, {})
    return made


def seen(connection: Connection, subject: str, since: int) -> list[tuple[str, int, int]]:
    """What the stream tells somebody, without bodies."""
    return [(type(e).__name__, e.version, e.id) for e in stream(connection, STUDENTS, since, subject=subject).items]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_old_document_surfaces_to_who_is_given_access(
    versions: Connection, student: Document, strategy: Strategy
) -> None:
    use_strategy(versions, strategy)
    since = newest(versions) + 1
    given = grant(versions, student, "ada")
    assert (given.version, given.document) == (since, student)
    assert seen(versions, "ada", since) == [("Upsert", since, student.id)]
    assert seen(versions, "eve", 1) == []
    assert seen(versions, "ada", 1) == [("Upsert", since, student.id)]
    changed = put(versions, STUDENTS, {"id": 7}, {"a": 1}).version
    assert seen(versions, "ada", since) == [("Upsert", changed, student.id)]


def test_who_loses_access_is_told_that_it_is_no_more(versions: Connection, student: Document) -> None:
    grant(versions, student, "ada")
    grant(versions, student, "eve")
    since = newest(versions) + 1
    lost = revoke(versions, student, "ada")
    assert lost == Deletion(since, student.id, STUDENTS, {"id": 7}, "ada")
    assert seen(versions, "ada", since) == [("Deletion", since, student.id)]
    assert seen(versions, "eve", since) == []
    again = grant(versions, student, "ada").version
    assert seen(versions, "ada", since) == [("Upsert", again, student.id)]


def test_what_changes_nothing_takes_no_stamp(versions: Connection, student: Document) -> None:
    given = grant(versions, student, "ada")
    before = journals(versions), last_stamp(versions)
    assert grant(versions, student, "ada") == given
    assert revoke(versions, student, "eve") is None
    for act in (grant, revoke):
        with pytest.raises(UnknownDocument, match="document 99"):
            act(versions, 99, "ada")
    assert (journals(versions), last_stamp(versions)) == before


def test_a_deleted_document_is_no_more_for_each_who_saw_it(versions: Connection, student: Document) -> None:
    grant(versions, student, "ada")
    since = newest(versions) + 1
    stamp = delete(versions, student).version
    assert journals(versions)["deletion"] == [(stamp, student.id, None), (stamp, student.id, "ada")]
    assert seen(versions, "ada", since) == [("Deletion", stamp, student.id)]
    assert seen(versions, "eve", since) == []


def test_another_identity_is_told_to_who_sees_it(versions: Connection, student: Document) -> None:
    grant(versions, student, "ada")
    since = newest(versions) + 1
    change_identity(versions, student, {"id": 9})
    assert [type(event) for event in stream(versions, STUDENTS, since, subject="ada").items] == [KeyChange, Upsert]
    assert seen(versions, "eve", since) == []


def test_of_a_revoke_and_a_grant_the_later_has_the_greater_version(
    versions: Connection, student: Document, versions_url: str
) -> None:
    grant(versions, student, "ada")
    with connect(versions_url) as other, other.transaction():
        other.execute("SET LOCAL lock_timeout = '50ms'")
        with versions.transaction():
            lost = revoke(versions, student, "ada")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                grant(other, student, "ada")
        given = grant(other, student, "ada")
    assert lost is not None
    assert given.version > lost.version


def test_a_document_that_is_deleted_while_access_is_given_is_no_more_for_them(
    versions: Connection, student: Document, versions_url: str
) -> None:
    gone = behind(
        versions,
        versions_url,
        lambda connection: grant(connection, student, "ada"),
        lambda connection: delete(connection, student),
    )
    assert journals(versions)["deletion"] == [(gone.version, student.id, None), (gone.version, student.id, "ada")]


def test_nobody_is_given_access_to_what_is_being_deleted(
    versions: Connection, student: Document, versions_url: str
) -> None:
    with pytest.raises(UnknownDocument, match=f"no document {student.id}"):
        behind(
            versions,
            versions_url,
            lambda connection: delete(connection, student),
            lambda connection: grant(connection, student, "ada"),
        )


def test_two_who_give_the_same_access_give_it_once(versions: Connection, student: Document, versions_url: str) -> None:
    stamp = last_stamp(versions)
    again = behind(
        versions,
        versions_url,
        lambda connection: grant(connection, student, "ada"),
        lambda connection: grant(connection, student, "ada"),
    )
    assert again.version == last_stamp(versions) == stamp + 1


def test_access_that_goes_while_it_is_looked_at_is_given_anew(
    versions: Connection, student: Document, versions_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when it was to be given, and is taken away before its version is read."""
    grant(versions, student, "ada")
    taken: list[Deletion | str | None] = []

    def asked(name: str) -> str:
        if name == "access" and not taken:
            taken.append("now")
            with connect(versions_url) as other:
                taken.append(revoke(other, student, "ada"))
        return operation.sql(name)

    monkeypatch.setattr(access, "sql", asked)
    given = grant(versions, student, "ada")
    assert isinstance(taken[1], Deletion)
    assert given.version == last_stamp(versions) == taken[1].version + 1
    assert seen(versions, "ada", 1) == [("Upsert", given.version, student.id)]


@pytest.mark.parametrize("subject", ["", "a\0", "\ud800", random.Random(1).randbytes(5000).hex()], ids=range(4))
def test_a_subject_that_nobody_can_have(versions: Connection, student: Document, subject: str) -> None:
    before = journals(versions)
    with pytest.raises(DocumentInvalid):
        grant(versions, student, subject)
    assert journals(versions) == before
    assert versions.execute("SELECT FROM forge_versions.access").fetchall() == []


def test_who_sees_a_resource_changes_only_where_it_is_said(versions: Connection) -> None:
    rooms = Resource("ed-fi", "rooms")
    declare(versions, rooms)
    assert resources(versions)[rooms] is False
    declare(versions, rooms, by_access=True)
    declare(versions, rooms)
    assert resources(versions)[rooms] is True
    declare(versions, rooms, by_access=False)
    assert resources(versions)[rooms] is False


@pytest.mark.parametrize("name", ["a/b", ""])
def test_a_name_that_would_be_another_resources(versions: Connection, name: str) -> None:
    with pytest.raises(UnknownResource, match="cannot be a part"):
        declare(versions, Resource("ed-fi", name))
