"""Documents are put, given references and deleted: one stamp for a change, none for what changes nothing."""

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from forge.errors import (
    DocumentInvalid,
    IdentityCycle,
    IdentityMismatch,
    MissingReference,
    StillReferenced,
    UnknownDocument,
    UnknownResource,
    VersionsMissing,
)
from forge.postgres.connection import Connection, connect
from forge.versions.access import grant, revoke
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.install import install, installed
from forge.versions.nouns import Document, Resource
from forge.versions.resources import declare, resources
from forge.versions.retention import maintain
from forge.versions.stamps import newest
from tests.versions.aside import behind
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
            put(versions, STUDENTS, {"id": 7, "school": {"id": 1}}, {"a": 1}, {})
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


def test_references_that_are_not_given_stay(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    inside = {"school": school}
    made = put(versions, COURSES, {"code": "a"}, {}, {**inside, "next": school}, in_identity={"school"}).document
    assert put(versions, COURSES, made.identity, {}).document == made
    assert last_stamp(versions) == made.content_version

    changed = put(versions, COURSES, made.identity, {"b": 1}).document
    assert (changed.body, changed.references) == ({"b": 1}, made.references)
    assert put(versions, COURSES, made.identity, {"b": 1}, {**inside, "next": school}).document == changed
    assert last_stamp(versions) == changed.content_version

    fewer = put(versions, COURSES, made.identity, {"b": 1}, inside).document
    assert {name: r.in_identity for name, r in fewer.references.items()} == {"school": True}
    outside = put(versions, COURSES, made.identity, {"b": 1}, in_identity=()).document
    assert {name: r.in_identity for name, r in outside.references.items()} == {"school": False}
    again = put(versions, COURSES, made.identity, {"b": 1}, in_identity=["school"]).document
    assert {name: r.in_identity for name, r in again.references.items()} == {"school": True}
    assert put(versions, COURSES, made.identity, {"b": 1}, {}).document.references == {}
    assert find(versions, COURSES, made.identity) is not None


def test_what_is_in_an_identity_stays_there_unless_it_is_said(versions: Connection) -> None:
    one, two = (put(versions, SCHOOLS, {"id": n}, {}).document for n in (1, 2))
    course = put(versions, COURSES, {"code": "a"}, {}, {"school": one}, in_identity={"school"}).document
    moved = set_references(versions, course, {"school": two, "next": one}).document
    assert moved.identity == {"code": "a", "school": {"id": 2}}
    assert {name: r.in_identity for name, r in moved.references.items()} == {"school": True, "next": False}
    with pytest.raises(IdentityMismatch, match="school"):
        put(versions, COURSES, moved.identity, {}, {"school": one})
    with pytest.raises(MissingReference, match="'home'"):
        put(versions, COURSES, moved.identity, {}, in_identity={"home"})
    assert set_references(versions, course, {"school": two}, in_identity=()).document.identity == moved.identity


@pytest.mark.parametrize("given", ["body", "flags", "references"])
def test_what_stays_is_what_is_there_once_it_is_held(versions: Connection, versions_url: str, given: str) -> None:
    """Another changes the references, and commits while this one waits for the document."""
    one, two = (put(versions, SCHOOLS, {"id": n}, {}).document for n in (1, 2))
    made = put(versions, COURSES, {"code": "a", "school": {"id": 1}}, {}, {"school": one}).document

    def act(connection: Connection) -> Document:
        match given:
            case "body":
                return put(connection, COURSES, made.identity, {"by": given}).document
            case "flags":
                return put(connection, COURSES, made.identity, {"by": given}, in_identity=()).document
            case _:
                return put(connection, COURSES, made.identity, {"by": given}, {"school": one, "next": two}).document

    found = behind(
        versions,
        versions_url,
        lambda connection: set_references(connection, made, {"school": one, "other": two}, in_identity={"school"}),
        act,
    )
    assert found.body == {"by": given}
    assert {name: (r.document, r.in_identity) for name, r in found.references.items()} == {
        "body": {"school": (one.id, True), "other": (two.id, False)},
        "flags": {"school": (one.id, False), "other": (two.id, False)},
        "references": {"school": (one.id, True), "next": (two.id, False)},
    }[given]
    assert put(versions, COURSES, made.identity, {"by": given}).document == found


@pytest.mark.parametrize("references", [{"school": 1}, {}], ids=["one", "none"])
def test_references_are_compared_once_the_document_is_held(
    versions: Connection, versions_url: str, references: dict[str, int]
) -> None:
    """They are those that it had, and another gives it others meanwhile."""
    one, two = (put(versions, SCHOOLS, {"id": n}, {}).document for n in (1, 2))
    assert one.id == 1
    made = put(versions, COURSES, {"code": "a"}, {}, references).document
    found = behind(
        versions,
        versions_url,
        lambda connection: set_references(connection, made, {"school": two}),
        lambda connection: set_references(connection, made, references),
    )
    assert {name: r.document for name, r in found.document.references.items()} == references
    assert found.version == last_stamp(versions)


def test_one_text_is_not_the_names_of_references(versions: Connection) -> None:
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    acts: list[Callable[[], object]] = [
        lambda: put(versions, COURSES, {"code": "a"}, {}, {"school": school}, in_identity="school"),
        lambda: set_references(versions, school, {"s": school}, in_identity="s"),
    ]
    for act in acts:
        with pytest.raises(DocumentInvalid, match="not names of references") as refused:
            act()
        assert "in_identity={'s" in refused.value.fix
    assert last_stamp(versions) == 1


HALF = "\ud800"
DEEP: Any = []
for _ in range(20_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("identity", "body", "references", "why"),
    [
        ({"id": "a\0"}, {}, {}, r"identity .* NUL"),
        ({"id": 7}, {"list": [{"a\0": 1}]}, {}, r"body .* NUL"),
        ({"id": HALF}, {}, {}, "identity .* surrogate"),
        ({"id": 7}, {HALF: 1}, {}, "body .* surrogate"),
        ({"id": 7}, {"a": [float("nan")]}, {}, "nan is no number"),
        ({"id": float("inf")}, {}, {}, "inf is no number"),
        ({"id": 7}, {"a": Decimal("-Infinity")}, {}, "-Infinity is no number"),
        ({"id": 7}, {"a": 10**5000}, {}, "digits"),
        ({"id": 7}, {"a": Decimal("1E+5000")}, {}, "digits"),
        ({"id": 7}, {"a": Decimal("1E-20000")}, {}, "numeric"),
        ({"id": 7}, {"a": DEEP}, {}, "nested deeper than 100 levels"),
        ({"id": 7}, {"a": object()}, {}, "unsupported"),
        ({"id": 7}, [1], {}, "body .* it is a list"),
        ("id", {}, {}, "identity .* it is a str"),
        ({"id": random.Random(1).randbytes(5000).hex()}, {}, {}, "index row"),
        ({"id": 7}, {}, {"a\0": 1}, r"name of a reference .* NUL"),
        ({"id": 7}, {}, {HALF: 1}, "name of a reference .* surrogate"),
        ({"id": 7}, {}, {"": 1}, "name of a reference .* empty"),
        ({"id": 7}, {}, {"school": (SCHOOLS, {"id": "\0"})}, r"'school' leads to .* NUL"),
    ],
    ids=[
        *(
            "NUL in identity",
            "NUL in body",
            "surrogate in identity",
            "surrogate in body",
            "NaN",
            "infinity",
            "Infinity",
        ),
        *("long int", "large number", "small number", "deep", "no JSON", "list", "text", "large identity"),
        *("NUL in name", "surrogate in name", "empty name", "NUL in target"),
    ],
)
def test_what_the_tables_cannot_hold_is_refused_by_name(
    versions: Connection, identity: Any, body: Any, references: Any, why: str
) -> None:
    put(versions, SCHOOLS, {"id": 1}, {})
    with versions.transaction(), pytest.raises(DocumentInvalid, match=why):
        put(versions, STUDENTS, identity, body, references)
    assert last_stamp(versions) <= 2
    assert len(journals(versions)["document"]) == 1


def test_an_identity_that_grows_too_large_with_what_it_contains(versions: Connection) -> None:
    chance = random.Random(1)
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    for n in range(2):
        text = chance.randbytes(1000).hex()
        put(versions, COURSES, {"code": text, "n": n}, {}, {"school": school}, in_identity={"school"})
    before = journals(versions)
    with pytest.raises(DocumentInvalid, match="index row"):
        change_identity(versions, school, {"id": chance.randbytes(1000).hex()})
    assert journals(versions) == before
    with pytest.raises(DocumentInvalid, match=r"NUL"):
        change_identity(versions, school, {"id": "\0"})
    with pytest.raises(DocumentInvalid, match=r"NUL"):
        find(versions, SCHOOLS, {"id": "\0"})


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**70], ids=str)
def test_an_id_that_no_document_can_have(versions: Connection, number: int) -> None:
    made = put(versions, SCHOOLS, {"id": 1}, {}).document
    acts: list[Callable[[], object]] = [
        lambda: get(versions, number),
        lambda: delete(versions, number),
        lambda: set_references(versions, number, {}),
        lambda: change_identity(versions, number, {}),
        lambda: grant(versions, number, "ada"),
        lambda: revoke(versions, number, "ada"),
    ]
    for act in acts:
        with pytest.raises(UnknownDocument, match=f"no document {number}"):
            act()
    with pytest.raises(MissingReference, match=f"document {number}"):
        set_references(versions, made, {"school": number})


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


def test_the_tables_of_an_older_release_are_upgraded(empty_database: str) -> None:
    with connect(empty_database) as connection:
        install(connection)
        declare(connection, STUDENTS)
        put(connection, STUDENTS, {"id": 7}, {})
        connection.execute(
            "DROP TABLE forge_versions.lease CASCADE;"
            " DROP FUNCTION forge_versions.take_lease, forge_versions.drop_lease, forge_versions.lease_holds,"
            " forge_versions.newest(boolean);"
            " UPDATE forge_versions.setting SET schema_version = 1"
        )
        with pytest.raises(VersionsMissing, match="version 1, this program needs 2") as caught:
            maintain(connection)
        assert caught.value.fix == "forge versions init"
        assert not install(connection)
        assert installed(connection)
        assert newest(connection) == 1
        assert not maintain(connection).busy


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
