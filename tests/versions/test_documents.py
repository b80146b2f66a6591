"""Documents are put, given references and deleted: one stamp for a change, none for what changes nothing."""

from decimal import Decimal

import psycopg
import pytest

from forge.changelog.connection import Connection, connect
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.errors import (
    IdentityCycle,
    IdentityMismatch,
    MissingReference,
    StillReferenced,
    UnknownDocument,
    UnknownResource,
    VersionsMissing,
)
from forge.versions.identity import change_identity
from forge.versions.install import install, installed
from forge.versions.nouns import Resource
from forge.versions.resources import declare, resources
from forge.versions.stamps import newest
from tests.versions.journals import COURSES, PLANS, SCHOOLS, STUDENTS, journals, last_stamp

pytestmark = pytest.mark.contract("V2")


def test_one_stamp_makes_a_document_and_both_its_tokens(versions: Connection) -> None:
    made = put(versions, STUDENTS, {"id": 7}, {"name": "Ada", "weight": Decimal("1.10")})
    assert made.version == last_stamp(versions) == 1
    assert (made.document.content_version, made.document.identity_version) == (1, 1)
    assert made.document == find(versions, STUDENTS, {"id": 7}) == get(versions, made.document.id)
    assert made.document.body == {"name": "Ada", "weight": Decimal("1.10")}
    assert journals(versions) == {"document": [(1, made.id)], "identity": [(1, made.id)], "key": [], "deletion": []}


@pytest.mark.contract("V3")
def test_another_content_stamps_the_content_alone(versions: Connection) -> None:
    made = put(versions, STUDENTS, {"id": 7}, {"name": "Ada"})
    again = put(versions, STUDENTS, {"id": 7}, {"name": "Ada L."})
    assert again.id == made.id
    assert (again.version, again.document.content_version, again.document.identity_version) == (2, 2, 1)
    assert journals(versions)["document"] == [(1, made.id), (2, made.id)]
    assert journals(versions)["identity"] == [(1, made.id)]


def test_what_changes_nothing_takes_no_stamp_and_writes_no_journal(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {})
    made = put(versions, STUDENTS, {"id": 7}, {"a": 1, "b": [1, 2]}, {"school": school.document})
    before = journals(versions), last_stamp(versions)
    same = put(versions, STUDENTS, {"id": 7}, {"b": [1, 2], "a": 1}, {"school": (SCHOOLS, {"id": 1})})
    kept = set_references(versions, made.id, {"school": school.id})
    moved = change_identity(versions, made.document, {"id": 7})
    assert same == kept == made
    assert (moved.version, moved.old_identity, moved.new_identity) == (2, {"id": 7}, {"id": 7})
    assert (journals(versions), last_stamp(versions)) == before


@pytest.mark.parametrize("what", ["body", "another child", "no reference", "another name", "in identity"])
def test_every_part_of_the_content_counts(versions: Connection, what: str) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    other = put(versions, SCHOOLS, {"id": 2}, {}).document
    put(versions, STUDENTS, {"id": 7, "school": {"id": 1}}, {"a": 1}, {"school": school})
    stamp = last_stamp(versions)
    match what:
        case "body":
            put(versions, STUDENTS, {"id": 7, "school": {"id": 1}}, {"a": 2}, {"school": school})
        case "another child":
            put(versions, STUDENTS, {"id": 7, "school": {"id": 1}}, {"a": 1}, {"school": other})
        case "no reference":
            put(versions, STUDENTS, {"id": 7, "school": {"id": 1}}, {"a": 1})
        case "another name":
            put(versions, STUDENTS, {"id": 7, "school": {"id": 1}}, {"a": 1}, {"place": school})
        case "in identity":
            put(versions, STUDENTS, {"id": 7}, {"a": 1}, {"school": school}, in_identity={"school"})
    found = find(versions, STUDENTS, {"id": 7, "school": {"id": 1}})
    assert found is not None
    assert (found.content_version, found.identity_version) == (stamp + 1, stamp)
    assert last_stamp(versions) == stamp + 1


def test_references_are_replaced_as_a_whole(versions: Connection) -> None:
    one, two = (put(versions, SCHOOLS, {"id": n}, {}).document for n in (1, 2))
    made = put(versions, STUDENTS, {"id": 7}, {}, {"home": one, "guest": two})
    assert {name: r.identity for name, r in made.document.references.items()} == {"home": {"id": 1}, "guest": {"id": 2}}
    changed = set_references(versions, made.document, {"home": two, "next": one})
    assert {name: r.document for name, r in changed.document.references.items()} == {"home": two.id, "next": one.id}
    assert changed.version == changed.document.content_version == last_stamp(versions)


def test_a_reference_may_lead_back(versions: Connection) -> None:
    made = put(versions, STUDENTS, {"id": 7}, {})
    found = set_references(versions, made.id, {"self": made.id}).document
    assert found.references["self"].identity == {"id": 7}
    assert delete(versions, made.id).version == 3


def test_an_identity_is_completed_by_what_it_contains(versions: Connection) -> None:
    put(versions, SCHOOLS, {"id": 1}, {})
    made = put(versions, COURSES, {"code": "x"}, {}, {"school": (SCHOOLS, {"id": 1})}, in_identity={"school"})
    assert made.document.identity == {"code": "x", "school": {"id": 1}}
    assert made.document.references["school"].in_identity
    with pytest.raises(IdentityMismatch, match="school"):
        put(versions, COURSES, {"code": "x", "school": {"id": 9}}, {}, {"school": (SCHOOLS, {"id": 1})}, {"school"})


@pytest.mark.contract("V6")
def test_a_deleted_document_leaves_its_tombstone(versions: Connection) -> None:
    made = put(versions, STUDENTS, {"id": 7}, {})
    gone = delete(versions, made.document)
    assert (gone.version, gone.document, gone.resource, gone.identity) == (2, made.id, STUDENTS, {"id": 7})
    assert find(versions, STUDENTS, {"id": 7}) is None
    assert journals(versions)["deletion"] == [(2, made.id, None)]
    again = put(versions, STUDENTS, {"id": 7}, {})
    assert again.id != made.id
    assert again.version == 3


def test_refusals_are_typed_and_write_nothing(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    made = put(versions, STUDENTS, {"id": 7}, {"a": 1}, {"school": school}).document
    before = journals(versions), last_stamp(versions)
    with pytest.raises(UnknownResource, match="nowhere/teachers"):
        put(versions, Resource("nowhere", "teachers"), {"id": 7}, {})
    with pytest.raises(MissingReference, match="'school' leads to ed-fi/schools") as missing:
        put(versions, STUDENTS, {"id": 8}, {}, {"school": (SCHOOLS, {"id": 2})})
    assert missing.value.name == "school"
    with pytest.raises(MissingReference, match="document 99"):
        set_references(versions, made, {"school": 99})
    with pytest.raises(MissingReference, match="'home'"):
        put(versions, STUDENTS, {"id": 8}, {}, {}, in_identity={"home"})
    with pytest.raises(StillReferenced, match=f"document {made.id} refers to") as referenced:
        delete(versions, school)
    assert referenced.value.by == made.id
    for refused in (get, delete):
        with pytest.raises(UnknownDocument, match="document 99"):
            refused(versions, 99)
    with pytest.raises(UnknownDocument, match="document 99"):
        set_references(versions, 99, {})
    with pytest.raises(UnknownDocument, match="document 99"):
        change_identity(versions, 99, {})
    with pytest.raises(IdentityCycle):
        set_references(versions, made, {"me": made}, in_identity={"me"})
    assert (journals(versions), last_stamp(versions)) == before
    assert get(versions, made.id) == made


def test_a_refusal_leaves_the_rest_of_the_callers_transaction(versions: Connection) -> None:
    with versions.transaction():
        kept = put(versions, STUDENTS, {"id": 7}, {})
        with pytest.raises(MissingReference):
            put(versions, STUDENTS, {"id": 8}, {}, {"school": 99})
        put(versions, STUDENTS, {"id": 9}, {})
    assert len(journals(versions)["document"]) == 2
    assert find(versions, STUDENTS, {"id": 7}) == kept.document
    assert find(versions, STUDENTS, {"id": 8}) is None


def test_nothing_is_there_before_the_callers_transaction_commits(versions: Connection, versions_url: str) -> None:
    with connect(versions_url) as other, versions.transaction(force_rollback=True):
        put(versions, STUDENTS, {"id": 7}, {})
        assert find(other, STUDENTS, {"id": 7}) is None
        assert newest(other) == 0
    assert find(versions, STUDENTS, {"id": 7}) is None


def test_two_who_put_the_same_identity_put_one_document(versions: Connection, versions_url: str) -> None:
    with connect(versions_url) as other, other.transaction():
        other.execute("SET LOCAL lock_timeout = '50ms'")
        with versions.transaction():
            put(versions, STUDENTS, {"id": 7}, {"by": "one"})
            with pytest.raises(psycopg.errors.LockNotAvailable):
                put(other, STUDENTS, {"id": 7}, {"by": "other"})
        put(other, STUDENTS, {"id": 7}, {"by": "other"})
    found = find(versions, STUDENTS, {"id": 7})
    assert found is not None
    assert found.body == {"by": "other"}
    assert found.identity_version < found.content_version
    assert len(journals(versions)["identity"]) == 1


def test_install_is_done_once(empty_database: str) -> None:
    with connect(empty_database) as connection:
        with pytest.raises(VersionsMissing, match="not installed"):
            put(connection, STUDENTS, {"id": 7}, {})
        assert not installed(connection)
        assert [install(connection), install(connection)] == [True, False]
        assert installed(connection)
        declare(connection, PLANS)
        assert resources(connection) == {PLANS: False}
        declare(connection, PLANS, by_access=True)
        assert resources(connection) == {PLANS: True}
        connection.execute("UPDATE forge_versions.setting SET schema_version = 99")
        with pytest.raises(VersionsMissing, match="version 99"):
            install(connection)
        connection.execute("DROP TABLE forge_versions.setting")
        with pytest.raises(VersionsMissing, match="not as Forge made it"):
            install(connection)
