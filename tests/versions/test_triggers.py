"""Applications write by SQL of their own, and triggers stamp and journal as the API would: once, and set by set."""

from typing import Any

import psycopg
import pytest

from forge.errors import IdentityTaken
from forge.postgres.connection import Connection, connect
from forge.versions.access import grant
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.nouns import Document, Resource, encode
from forge.versions.resources import resource_id
from forge.versions.strategies import use_strategy
from forge.versions.triggers import write_by, writes
from tests.versions.journals import COURSES, PLANS, SCHOOLS, STUDENTS, journals, last_stamp

pytestmark = pytest.mark.contract("V3")


@pytest.fixture
def raw(versions: Connection) -> Connection:
    """A connection to a database in trigger mode."""
    write_by(versions, "trigger")
    return versions


def insert(connection: Connection, resource: Resource, *identities: dict[str, Any]) -> list[int]:
    rows = connection.execute(
        "INSERT INTO forge_versions.document (resource, identity, body)"
        " SELECT %s, i::jsonb, '{}' FROM unnest(%s::text[]) i RETURNING id",
        (resource_id(connection, resource), [encode(identity) for identity in identities]),
    ).fetchall()
    return [id for (id,) in rows]


def refer(connection: Connection, parent: int, name: str, child: int, *, in_identity: bool = False) -> None:
    connection.execute(
        "INSERT INTO forge_versions.reference (parent, name, child, in_identity) VALUES (%s, %s, %s, %s)",
        (parent, name, child, in_identity),
    )


def tokens(connection: Connection, *ids: int) -> list[tuple[int, int]]:
    found: list[Document] = [get(connection, id) for id in ids]
    return [(document.content_version, document.identity_version) for document in found]


def test_a_statement_that_inserts_many_takes_one_stamp(raw: Connection) -> None:
    ids = insert(raw, STUDENTS, {"id": 1}, {"id": 2}, {"id": 3})
    assert tokens(raw, *ids) == [(1, 1)] * 3
    assert journals(raw)["document"] == journals(raw)["identity"] == [(1, id) for id in ids]
    assert last_stamp(raw) == 1


def test_a_statement_that_changes_bodies_stamps_those_that_differ(raw: Connection) -> None:
    ids = insert(raw, STUDENTS, {"id": 1}, {"id": 2}, {"id": 3})
    raw.execute("UPDATE forge_versions.document SET body = CASE WHEN id = %s THEN body ELSE '{\"a\": 1}' END", ids[:1])
    assert tokens(raw, *ids) == [(1, 1), (2, 1), (2, 1)]
    raw.execute(
        "UPDATE forge_versions.document SET body = body || '{\"a\": 1}', content_at = now() WHERE id = %s", ids[1:2]
    )
    raw.execute("UPDATE forge_versions.document SET body = '{\"b\": 1}' WHERE false")
    assert last_stamp(raw) == 2
    assert journals(raw)["document"][3:] == [(2, ids[1]), (2, ids[2])]


def test_another_spelling_of_a_number_is_a_change(raw: Connection) -> None:
    """1.0 and 1 are equal to PostgreSQL, and not the same to who reads them."""
    one, two = insert(raw, STUDENTS, {"id": 1}, {"id": 2})
    raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 1}'")
    raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 1.0}' WHERE id = %s", (one,))
    assert tokens(raw, one, two) == [(3, 1), (2, 1)]
    raw.execute("UPDATE forge_versions.document SET identity = '{\"id\": 2.0}' WHERE id = %s", (two,))
    assert tokens(raw, one, two) == [(3, 1), (2, 4)]
    assert [row[:2] for row in journals(raw)["key"]] == [(4, two)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_session_that_wrote_one_row_writes_many_as_well(raw: Connection) -> None:
    """A plan that is kept from the one row would join the many with each other: minutes."""
    use_strategy(raw, "monotonic")
    many = [{"id": n} for n in range(20_000)]
    for identities in ([{"id": -1}], many):
        ids = insert(raw, STUDENTS, *identities)
        raw.execute("SET statement_timeout = '60s'")
        raw.execute(
            "INSERT INTO forge_versions.reference (parent, name, child)"
            " SELECT p, 'next', %s FROM unnest(%s::bigint[]) p",
            (ids[0], ids),
        )
        raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 1}' WHERE id = ANY (%s)", (ids,))
        raw.execute(
            "UPDATE forge_versions.document SET identity = jsonb_build_object('new', id) WHERE id = ANY (%s)", (ids,)
        )
        raw.execute("UPDATE forge_versions.reference SET name = 'then' WHERE parent = ANY (%s)", (ids,))
        raw.execute("DELETE FROM forge_versions.reference WHERE parent = ANY (%s)", (ids,))
        raw.execute("DELETE FROM forge_versions.document WHERE id = ANY (%s)", (ids,))


def test_a_document_and_its_references_in_one_transaction_take_one_stamp(raw: Connection) -> None:
    (school,) = insert(raw, SCHOOLS, {"id": 1})
    with raw.transaction():
        (student,) = insert(raw, STUDENTS, {"id": 7})
        refer(raw, student, "home", school)
        refer(raw, student, "guest", school)
        raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 1}' WHERE id = %s", (student,))
    assert tokens(raw, student) == [(2, 2)]
    assert journals(raw)["document"] == [(1, school), (2, student)]
    raw.execute("DELETE FROM forge_versions.reference WHERE name = 'guest'")
    raw.execute("UPDATE forge_versions.reference SET name = 'place'")
    raw.execute("UPDATE forge_versions.reference SET child = child")
    assert tokens(raw, student) == [(4, 2)]


def test_a_stamp_is_not_shared_across_one_of_another_transaction(raw: Connection, versions_url: str) -> None:
    """Else the later change of a document would have the lower version."""
    one, two = insert(raw, STUDENTS, {"id": 1}, {"id": 2})
    with connect(versions_url) as other, raw.transaction():
        raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 1}' WHERE id = %s", (one,))
        other.execute("UPDATE forge_versions.document SET body = '{\"b\": 1}' WHERE id = %s", (two,))
        raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 2}' WHERE id = %s", (one,))
        raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 2}' WHERE id = %s", (two,))
    assert tokens(raw, one, two) == [(2, 1), (4, 1)]


@pytest.mark.every_version
def test_identities_follow_those_that_they_contain(raw: Connection) -> None:
    (school,) = insert(raw, SCHOOLS, {"id": 1})
    (course,) = insert(raw, COURSES, {"code": "a"})
    refer(raw, course, "school", school, in_identity=True)
    assert get(raw, course).identity == {"code": "a", "school": {"id": 1}}
    (plan,) = insert(raw, PLANS, {"year": 1, "course": {"code": "a", "school": {"id": 1}}})
    refer(raw, plan, "course", course, in_identity=True)
    aside = put(raw, STUDENTS, {"id": 7}, {}, {"plan": plan}).id
    before = tokens(raw, aside)
    raw.execute("UPDATE forge_versions.document SET identity = '{\"id\": 2}' WHERE id = %s", (school,))
    stamp = last_stamp(raw)
    assert get(raw, plan).identity == {"year": 1, "course": {"code": "a", "school": {"id": 2}}}
    assert [identity for _, identity in tokens(raw, school, course, plan)] == [stamp] * 3
    assert [row[:2] for row in journals(raw)["key"] if row[0] == stamp] == [
        (stamp, id) for id in (school, course, plan)
    ]
    assert tokens(raw, aside) == before


def test_an_identity_cannot_be_set_to_contain_something_else(raw: Connection) -> None:
    (school,) = insert(raw, SCHOOLS, {"id": 1})
    (course,) = insert(raw, COURSES, {"code": "a", "school": {"id": 1}})
    refer(raw, course, "school", school, in_identity=True)
    raw.execute(
        'UPDATE forge_versions.document SET identity = \'{"code": "b", "school": {"id": 5}}\' WHERE id = %s', (course,)
    )
    assert get(raw, course).identity == {"code": "b", "school": {"id": 1}}
    (row,) = journals(raw)["key"]
    assert row[2:] == ({"code": "a", "school": {"id": 1}}, {"code": "b", "school": {"id": 1}})


def test_deletions_leave_tombstones_for_all_and_for_each_who_had_access(raw: Connection) -> None:
    (school,) = insert(raw, SCHOOLS, {"id": 1})
    one, two = insert(raw, STUDENTS, {"id": 7}, {"id": 8})
    refer(raw, one, "school", school)
    grant(raw, one, "ada")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        raw.execute("DELETE FROM forge_versions.document WHERE id = %s", (school,))
    stamp = last_stamp(raw) + 1
    raw.execute("DELETE FROM forge_versions.document WHERE id = ANY (%s)", ([one, two],))
    assert journals(raw)["deletion"] == [(stamp, one, None), (stamp, one, "ada"), (stamp, two, None)]
    assert last_stamp(raw) == stamp


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE forge_versions.reference",
        "TRUNCATE forge_versions.document CASCADE",
        "UPDATE forge_versions.document SET resource = resource + 1",
        "INSERT INTO forge_versions.reference (parent, name, child, in_identity) SELECT id, 'me', id, true"
        " FROM forge_versions.document",
    ],
    ids=["truncate references", "truncate documents", "another resource", "contains itself"],
)
def test_what_cannot_be_journaled_is_refused(raw: Connection, statement: str) -> None:
    insert(raw, STUDENTS, {"id": 7})
    before = journals(raw)
    with pytest.raises(psycopg.Error) as refused:
        raw.execute(statement.encode())
    assert (refused.value.sqlstate or "").startswith("FG70")
    assert journals(raw) == before


def test_the_api_beside_the_triggers_stamps_once(raw: Connection) -> None:
    school = put(raw, SCHOOLS, {"id": 1}, {}).document
    course = put(raw, COURSES, {"code": "a"}, {}, {"school": school}, in_identity={"school"}).document
    set_references(raw, course, {"school": school, "next": school}, in_identity={"school"})
    change_identity(raw, school, {"id": 2})
    put(raw, COURSES, {"code": "a"}, {"b": 1}, {"school": school}, in_identity={"school"})
    with raw.transaction():
        put(raw, SCHOOLS, {"id": 3}, {})
        with pytest.raises(IdentityTaken):
            change_identity(raw, school, {"id": 3})
        insert(raw, STUDENTS, {"id": 7})
    delete(raw, course)
    ours = [(s, i) for s, i in journals(raw)["document"] if i in (school.id, course.id)]
    assert ours == [(1, school.id), (2, course.id), (3, course.id), (4, school.id), (4, course.id), (5, course.id)]
    assert [row[:2] for row in journals(raw)["key"]] == [(4, school.id), (4, course.id)]
    found = find(raw, STUDENTS, {"id": 7})
    assert found is not None
    assert found.content_version == last_stamp(raw) - 1
    assert [row[:2] for row in journals(raw)["deletion"]] == [(last_stamp(raw), course.id)]


def test_the_hash_is_right_in_both_modes(raw: Connection) -> None:
    (school,) = insert(raw, SCHOOLS, {"id": 1})
    (student,) = insert(raw, STUDENTS, {"id": 7})
    refer(raw, student, "school", school)
    raw.execute("UPDATE forge_versions.document SET body = '{\"a\": 1}' WHERE id = %s", (student,))
    write_by(raw, "application")
    assert writes(raw) == "application"
    stamp = last_stamp(raw)
    assert put(raw, STUDENTS, {"id": 7}, {"a": 1}, {"school": school}).version == stamp
    assert put(raw, STUDENTS, {"id": 7}, {}, {"school": school}).version == stamp + 1
    with pytest.raises(psycopg.errors.NotNullViolation):
        insert(raw, STUDENTS, {"id": 8})
