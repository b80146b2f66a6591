"""Identities change, and with them those that contain them; who merely refers to them is not touched."""

import psycopg
import pytest

from forge.changelog.connection import Connection, connect
from forge.versions.documents import delete, get, put, set_references
from forge.versions.errors import IdentityCycle, IdentityMismatch, IdentityTaken, IsolationUnfit, MissingReference
from forge.versions.identity import change_identity
from tests.versions.journals import COURSES, PLANS, SCHOOLS, STUDENTS, journals, last_stamp


@pytest.mark.contract("V1")
def test_a_change_of_identity_does_not_touch_who_refers_to_it(versions: Connection) -> None:
    student = put(versions, STUDENTS, {"id": 7}, {}).document
    plan = put(versions, PLANS, {"year": 2026}, {"credits": 24}, {"student": student}).document
    changed = change_identity(versions, student, {"id": 8})
    assert (changed.version, changed.old_identity, changed.new_identity) == (3, {"id": 7}, {"id": 8})
    after = get(versions, plan.id)
    assert (after.content_version, after.identity_version) == (2, 2)
    assert after.references["student"].identity == {"id": 8}
    assert journals(versions) == {
        "document": [(1, student.id), (2, plan.id), (3, student.id)],
        "identity": [(1, student.id), (2, plan.id), (3, student.id)],
        "key": [(3, student.id, {"id": 7}, {"id": 8})],
        "deletion": [],
    }


@pytest.mark.contract("V2")
def test_identities_that_contain_it_follow_with_the_same_stamp(versions: Connection) -> None:
    """A diamond: a plan contains two courses, which contain one school."""
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    one, two = (
        put(versions, COURSES, {"code": code}, {}, {"school": school}, in_identity={"school"}).document for code in "ab"
    )
    courses = {"first": one, "second": two}
    plan = put(versions, PLANS, {"year": 2026}, {}, courses, in_identity=courses.keys()).document
    aside = put(versions, STUDENTS, {"id": 7}, {}, {"plan": plan}).document
    stamp = change_identity(versions, school, {"id": 2}).version
    assert stamp == last_stamp(versions)
    moved = get(versions, plan.id)
    expected = {"school": {"id": 2}}
    assert moved.identity == {"year": 2026, "first": {"code": "a", **expected}, "second": {"code": "b", **expected}}
    for document in (school, one, two, plan):
        now = get(versions, document.id)
        assert (now.identity_version, now.content_version) == (stamp, document.content_version)
    assert get(versions, aside.id).identity_version == aside.identity_version
    found = journals(versions)
    ids = sorted(document.id for document in (school, one, two, plan))
    assert [row for row in found["document"] if row[0] == stamp] == [(stamp, id) for id in ids]
    assert [row for row in found["identity"] if row[0] == stamp] == [(stamp, id) for id in ids]
    assert [(version, id) for version, id, _, _ in found["key"]] == [(stamp, id) for id in ids]
    assert found["key"][-1][2:] == (plan.identity, moved.identity)


def test_another_reference_in_an_identity_is_another_identity(versions: Connection) -> None:
    one, two = (put(versions, SCHOOLS, {"id": n}, {}).document for n in (1, 2))
    course = put(versions, COURSES, {"code": "a"}, {}, {"school": one}, in_identity={"school"}).document
    plan = put(versions, PLANS, {"year": 1}, {}, {"course": course}, in_identity={"course"}).document
    moved = set_references(versions, course, {"school": two}, in_identity={"school"})
    assert moved.document.identity == {"code": "a", "school": {"id": 2}}
    assert moved.version == moved.document.content_version == moved.document.identity_version == last_stamp(versions)
    assert get(versions, plan.id).identity == {"year": 1, "course": {"code": "a", "school": {"id": 2}}}
    assert [row[:2] for row in journals(versions)["key"]] == [(moved.version, course.id), (moved.version, plan.id)]


def test_parts_that_come_from_references_are_theirs(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    course = put(versions, COURSES, {"code": "a"}, {}, {"school": school}, in_identity={"school"}).document
    assert change_identity(versions, course, {"code": "b"}).new_identity == {"code": "b", "school": {"id": 1}}
    with pytest.raises(IdentityMismatch, match="school"):
        change_identity(versions, course, {"code": "b", "school": {"id": 2}})


def test_a_taken_identity_is_refused_wherever_it_comes_up(versions: Connection) -> None:
    one = put(versions, SCHOOLS, {"id": 1}, {}).document
    put(versions, COURSES, {"code": "a"}, {}, {"school": one}, in_identity={"school"})
    two = put(versions, SCHOOLS, {"id": 2}, {}).document
    put(versions, COURSES, {"code": "a", "school": {"id": 3}}, {})
    before = journals(versions)
    with pytest.raises(IdentityTaken):
        change_identity(versions, two, {"id": 1})
    with pytest.raises(IdentityTaken):
        change_identity(versions, one, {"id": 3})
    assert get(versions, one.id) == one
    assert journals(versions) == before


def test_a_cycle_of_identities_is_refused(versions: Connection) -> None:
    first = put(versions, SCHOOLS, {"id": 1}, {}).document
    second = put(versions, COURSES, {"code": "a"}, {}, {"school": first}, in_identity={"school"}).document
    third = put(versions, PLANS, {"year": 1}, {}, {"course": second}, in_identity={"course"}).document
    before = journals(versions), last_stamp(versions)
    with pytest.raises(IdentityCycle, match=f"document {first.id}"):
        set_references(versions, first, {"plan": third}, in_identity={"plan"})
    assert (journals(versions), last_stamp(versions)) == before
    set_references(versions, first, {"plan": third})
    assert get(versions, first.id).references["plan"].document == third.id


def test_a_cycle_that_no_one_transaction_would_see_is_refused(versions: Connection, versions_url: str) -> None:
    """Two edges with nothing in common close a ring of four; each waits for the other to see it."""
    a, b, c, d = (put(versions, SCHOOLS, {"id": n}, {}).document for n in range(4))
    set_references(versions, a, {"next": b}, in_identity={"next"})
    set_references(versions, c, {"next": d}, in_identity={"next"})
    with connect(versions_url) as other, other.transaction():
        other.execute("SET LOCAL lock_timeout = '100ms'")
        with versions.transaction():
            set_references(versions, b, {"next": c}, in_identity={"next"})
            with pytest.raises(psycopg.errors.LockNotAvailable):
                set_references(other, d, {"next": a}, in_identity={"next"})
        with pytest.raises(IdentityCycle):
            set_references(other, d, {"next": a}, in_identity={"next"})


def test_a_ring_made_by_hand_is_noticed(versions: Connection) -> None:
    one = put(versions, SCHOOLS, {"id": 1}, {}).document
    two = put(versions, SCHOOLS, {"id": 2}, {}, {"next": one}, in_identity={"next"}).document
    versions.execute(
        "INSERT INTO forge_versions.reference (parent, name, child, in_identity) VALUES (%s, 'next', %s, true)",
        (one.id, two.id),
    )
    three = put(versions, SCHOOLS, {"id": 3}, {}).document
    versions.execute(
        "INSERT INTO forge_versions.reference (parent, name, child, in_identity) VALUES (%s, 'third', %s, true)",
        (one.id, three.id),
    )
    with pytest.raises(IdentityCycle):
        change_identity(versions, three, {"id": 4})


def test_who_refers_to_a_document_sees_its_identity_change_or_is_seen(versions: Connection, versions_url: str) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    with connect(versions_url) as other:
        other.execute("SET lock_timeout = '50ms'")
        with versions.transaction():
            put(versions, COURSES, {"code": "a"}, {}, {"school": school}, in_identity={"school"})
            with pytest.raises(psycopg.errors.LockNotAvailable):
                change_identity(other, school, {"id": 2})
            with pytest.raises(psycopg.errors.LockNotAvailable):
                delete(other, school)
            assert put(other, SCHOOLS, {"id": 1}, {"name": "its content may change"}).version == 3
        assert change_identity(other, school, {"id": 2}).version == 4
        with versions.transaction():
            change_identity(versions, school, {"id": 5})
            with pytest.raises(psycopg.errors.LockNotAvailable):
                put(other, COURSES, {"code": "b"}, {}, {"school": (SCHOOLS, {"id": 2})})
        with pytest.raises(MissingReference):
            put(other, COURSES, {"code": "b"}, {}, {"school": (SCHOOLS, {"id": 2})})


def test_an_older_snapshot_may_not_change_identities(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    with versions.transaction():
        versions.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(IsolationUnfit, match="READ COMMITTED"):
            change_identity(versions, school, {"id": 2})
    assert get(versions, school.id) == school
