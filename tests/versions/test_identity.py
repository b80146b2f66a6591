"""Identities change, and with them those that contain them; who merely refers to them is not touched."""

from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal

import psycopg
import pytest

from forge.errors import IdentityCycle, IdentityMismatch, IdentityTaken, IsolationUnfit, MissingReference
from forge.postgres.connection import Connection, connect
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.nouns import KeyChange, Upsert
from tests.versions.aside import aside, behind
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


@pytest.mark.contract("V2")
def test_who_comes_to_contain_it_while_its_identity_changes_follows_too(
    versions: Connection, versions_url: str
) -> None:
    """A plan comes to contain a course while the course's school changes: it is not committed when that looks first."""
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    course = put(versions, COURSES, {"code": "a"}, {}, {"school": school}, in_identity={"school"}).document
    behind(
        versions,
        versions_url,
        lambda connection: put(connection, PLANS, {"year": 1}, {}, {"course": course}, in_identity={"course"}),
        lambda connection: change_identity(connection, school, {"id": 2}),
    )
    plan = find(versions, PLANS, {"year": 1, "course": {"code": "a", "school": {"id": 2}}})
    assert plan is not None
    assert plan.identity_version == get(versions, school.id).identity_version == last_stamp(versions)


def test_who_contains_one_that_appeared_meanwhile_follows_too(versions: Connection, versions_url: str) -> None:
    """A plan comes to contain a course that is waited for; and while another is, a student to contain the plan."""
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    course, other = (
        put(versions, COURSES, {"code": code}, {}, {"school": school}, in_identity={"school"}).document for code in "ab"
    )
    with ExitStack() as stack:
        watcher, writer = (stack.enter_context(connect(versions_url)) for _ in range(2))
        with versions.transaction():
            versions.execute("SELECT FROM forge_versions.document WHERE id = %s FOR KEY SHARE", (other.id,))
            with writer.transaction():
                plan = put(writer, PLANS, {"year": 1}, {}, {"course": course}, in_identity={"course"}).document
                renamed = stack.enter_context(aside(versions_url, lambda c: change_identity(c, school, {"id": 2})))
                renamed.waits(watcher)
            renamed.waits(watcher, on=versions)
            writer.execute("BEGIN")
            student = put(writer, STUDENTS, {"id": 7}, {}, {"plan": plan}, in_identity={"plan"}).document
        renamed.waits(watcher, on=writer)
        writer.execute("COMMIT")
        stamp = renamed.result().version
    whole = {"id": 7, "plan": {"year": 1, "course": {"code": "a", "school": {"id": 2}}}}
    assert get(versions, student.id).identity == whole
    assert get(versions, student.id).identity_version == stamp


def test_a_reference_by_identity_leads_to_who_has_it_once_he_is_held(versions: Connection, versions_url: str) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    with pytest.raises(MissingReference, match="schools"):
        behind(
            versions,
            versions_url,
            lambda connection: change_identity(connection, school, {"id": 2}),
            lambda connection: put(connection, STUDENTS, {"id": 7}, {}, {"school": (SCHOOLS, {"id": 1})}),
        )
    assert find(versions, STUDENTS, {"id": 7}) is None


def test_two_changes_of_identities_with_the_same_dependents_do_not_deadlock(
    versions: Connection, versions_url: str
) -> None:
    """Both carry to x and y. From one root y is nearer, from the other they are equally near."""
    one, two = (put(versions, SCHOOLS, {"id": n}, {}).document for n in (1, 2))
    x, y = (put(versions, COURSES, {"code": code}, {}).document for code in "xy")
    set_references(versions, y, {"one": one, "two": two}, in_identity={"one", "two"})
    set_references(versions, x, {"y": y, "two": two}, in_identity={"y", "two"})
    with ExitStack() as stack:
        with versions.transaction():
            versions.execute("SELECT FROM forge_versions.document WHERE id = %s FOR KEY SHARE", (x.id,))
            from_two = stack.enter_context(aside(versions_url, lambda c: change_identity(c, two, {"id": 22})))
            from_two.waits(versions)
            from_one = stack.enter_context(aside(versions_url, lambda c: change_identity(c, one, {"id": 11})))
            from_one.waits(versions)
        assert from_two.result().version < from_one.result().version
    inner = {"code": "y", "one": {"id": 11}, "two": {"id": 22}}
    assert get(versions, x.id).identity == {"code": "x", "y": inner, "two": {"id": 22}}


def test_a_change_of_an_identity_and_one_of_what_it_contains_do_not_deadlock(
    versions: Connection, versions_url: str
) -> None:
    """The plan has a lower id than the course that it contains, and that a lower one than its school."""
    plan = put(versions, PLANS, {"year": 1}, {}).document
    course = put(versions, COURSES, {"code": "a"}, {}).document
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    set_references(versions, course, {"school": school}, in_identity={"school"})
    set_references(versions, plan, {"course": course}, in_identity={"course"})
    with ExitStack() as stack:
        with versions.transaction():
            versions.execute("SELECT FROM forge_versions.document WHERE id = %s FOR KEY SHARE", (plan.id,))
            of_school = stack.enter_context(aside(versions_url, lambda c: change_identity(c, school, {"id": 2})))
            of_school.waits(versions)
            of_course = stack.enter_context(aside(versions_url, lambda c: change_identity(c, course, {"code": "b"})))
            of_course.waits(versions)
        assert of_school.result().version < of_course.result().version
    assert get(versions, plan.id).identity == {"year": 1, "course": {"code": "b", "school": {"id": 2}}}


@pytest.mark.parametrize("first", ["identity", "references"])
def test_a_document_that_refers_to_a_later_one_is_held_before_it(
    versions: Connection, versions_url: str, first: str
) -> None:
    """As a change of the later one's identity holds them; else each would wait for the other."""
    plan = put(versions, PLANS, {"year": 1}, {}).document
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    plan = set_references(versions, plan, {"school": school}, in_identity={"school"}).document
    acts: list[Callable[[Connection], KeyChange | Upsert]] = [
        lambda connection: change_identity(connection, school, {"id": 2}),
        lambda connection: set_references(connection, plan, {"school": school, "next": school}),
    ]
    with ExitStack() as stack:
        with versions.transaction():
            versions.execute("SELECT FROM forge_versions.document WHERE id = %s FOR KEY SHARE", (plan.id,))
            waiting = []
            for act in acts if first == "identity" else reversed(acts):
                waiting.append(stack.enter_context(aside(versions_url, act)))
                waiting[-1].waits(versions)
        assert waiting[0].result().version < waiting[1].result().version
    assert get(versions, plan.id).identity == {"year": 1, "school": {"id": 2}}


def test_another_spelling_of_a_number_is_another_identity(versions: Connection) -> None:
    """The key is the same, and what readers are shown is not."""
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    course = put(versions, COURSES, {"code": "a"}, {}, {"school": school}, in_identity={"school"}).document
    stamp = change_identity(versions, school, {"id": Decimal("1.0")}).version
    assert stamp == last_stamp(versions) > course.identity_version
    assert str(get(versions, course.id).identity["school"]["id"]) == "1.0"
    assert [row[:2] for row in journals(versions)["key"]] == [(stamp, school.id), (stamp, course.id)]


def test_an_older_snapshot_may_not_change_identities(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    with versions.transaction():
        versions.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(IsolationUnfit, match="READ COMMITTED"):
            change_identity(versions, school, {"id": 2})
    assert get(versions, school.id) == school
