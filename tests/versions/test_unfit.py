"""What not everybody could read again: nobody writes it, and where it is there already, readers name the document."""

from typing import Any

import psycopg
import pytest

from forge.app import Forge
from forge.changelog.install import install as install_log
from forge.errors import DocumentInvalid, DocumentUnreadable
from forge.postgres.connection import Connection, connect
from forge.versions.documents import get, put
from forge.versions.identity import change_identity
from forge.versions.install import install
from forge.versions.nouns import decode, encode
from forge.versions.reading import changes
from forge.versions.resources import resource_id
from forge.versions.texts import DIGITS, LEVELS
from forge.versions.triggers import write_by
from tests.serve.serving import serving
from tests.versions.aside import aside
from tests.versions.journals import COURSES, SCHOOLS, STUDENTS, journals, last_stamp


def nested(levels: int) -> str:
    """An object whose innermost value lies so many levels deep."""
    return '{"a":' + "[" * (levels - 1) + "1" + "]" * (levels - 1) + "}"


NEARLY = [nested(LEVELS), '{"a": 9e3999}', '{"a": [-9e3999]}', '{"a": 1e-5000}', '{"a": {}, "b": []}']
UNFIT = [
    pytest.param(nested(LEVELS + 1), "nested deeper than 100 levels", id="deep"),
    pytest.param(nested(980), "nested deeper than 100 levels", id="deeper"),
    pytest.param(nested(3000), "nested deeper than 100 levels", id="deepest"),
    pytest.param('{"a": 1e4000}', "more than 4,000 digits", id="large"),
    pytest.param('{"a": [{"b": -1e5000}]}', "more than 4,000 digits", id="negative"),
    pytest.param('{"a": ' + "7" * 5000 + "}", "more than 4,000 digits", id="long"),
    pytest.param("[1]", "JSON array, not an object", id="array"),
    pytest.param("5", "JSON number, not an object", id="number"),
    pytest.param("null", "JSON null, not an object", id="null"),
]


@pytest.fixture
def raw(versions: Connection) -> Connection:
    write_by(versions, "trigger")
    return versions


def insert(connection: Connection, identity: str, body: str) -> int:
    row = connection.execute(
        "INSERT INTO forge_versions.document (resource, identity, body) VALUES (%s, %s, %s) RETURNING id",
        (resource_id(connection, STUDENTS), identity, body),
    ).fetchone()
    assert row is not None
    return int(row[0])


def put_in(connection: Connection, body: str) -> int:
    """A document that an older program, or somebody past the triggers, let in."""
    connection.execute("ALTER TABLE forge_versions.document DISABLE TRIGGER document_fit")
    made = insert(connection, '{"id": 7}', body)
    connection.execute("ALTER TABLE forge_versions.document ENABLE TRIGGER document_fit")
    return made


@pytest.mark.contract("V3")
@pytest.mark.parametrize(("text", "why"), UNFIT)
def test_it_is_refused_by_triggers(raw: Connection, text: str, why: str) -> None:
    made = insert(raw, '{"id": 1}', "{}")
    before = journals(raw)
    for column in ("body", "identity")[: 1 if len(text) > 1000 else 2]:  # so large an identity is none to the index
        texts = {"identity": '{"id": 2}', "body": "{}", column: text}
        with pytest.raises(psycopg.Error, match=f"the {column} of document .* {why}") as refused:
            insert(raw, **texts)
        assert refused.value.sqlstate == "FG705"
        with pytest.raises(psycopg.Error, match=f"the {column} of document {made} .* {why}"):
            raw.execute(f"UPDATE forge_versions.document SET {column} = %s".encode(), (text,))
    assert journals(raw) == before
    assert changes(raw, STUDENTS).items[0].document.body == {}


def test_what_is_nearly_so_is_read_as_it_was(raw: Connection) -> None:
    for text in NEARLY:
        insert(raw, text, text)
    found = [item.document for item in changes(raw, STUDENTS).items]
    assert [(one.identity, one.body) for one in found] == [(decode(text),) * 2 for text in NEARLY]
    for n, text in enumerate(NEARLY):
        assert put(raw, SCHOOLS, {"id": n}, decode(text)).document.body == decode(text)


@pytest.mark.parametrize("levels", [LEVELS + 1, 970, 990])
def test_the_api_refuses_what_is_nested_deeper_than_everybody_reads(versions: Connection, levels: int) -> None:
    """970 levels can be written where the stack of who writes is short, and not be read where it is long."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    for identity, body in ((value, {}), ({"id": 7}, value)):
        with pytest.raises(DocumentInvalid, match="nested deeper than 100 levels"):
            put(versions, STUDENTS, identity, body)
    assert last_stamp(versions) == 0


def test_the_api_counts_digits_as_the_triggers_do(versions: Connection) -> None:
    assert put(versions, STUDENTS, {"id": 1}, {"a": 10**DIGITS - 1}).document.body == {"a": 10**DIGITS - 1}
    for number in (10**DIGITS, -(10**DIGITS)):
        with pytest.raises(DocumentInvalid, match="more than 4,000 digits"):
            put(versions, STUDENTS, {"id": 2}, {"a": number})


@pytest.mark.every_version
def test_identities_that_contain_others_are_no_deeper(versions: Connection) -> None:
    """Of the API too: what an identity contains comes from the tables."""
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    put(versions, COURSES, {"code": 1}, {}, {"school": school}, in_identity={"school"})
    before = journals(versions)
    with pytest.raises(DocumentInvalid, match=r"the identity of document 2 .* nested deeper than 100 levels"):
        change_identity(versions, school, decode(nested(LEVELS)))
    assert journals(versions) == before
    assert change_identity(versions, school, decode(nested(LEVELS - 1))).version == last_stamp(versions)


@pytest.mark.parametrize("body", [nested(3000), '{"a": 1e5000}', "[1]"], ids=["deep", "large", "array"])
def test_what_is_there_already_is_told_by_its_document(raw: Connection, body: str) -> None:
    fine = insert(raw, '{"id": 1}', "{}")
    bad = put_in(raw, body)
    for act in (lambda: changes(raw, STUDENTS), lambda: changes(raw, STUDENTS, 1), lambda: get(raw, bad)):
        with pytest.raises(DocumentUnreadable, match=f"document {bad} cannot be read") as told:
            act()
        assert told.value.document == bad
    assert [item.id for item in changes(raw, STUDENTS, 1, 1).items] == [fine]
    put(raw, STUDENTS, {"id": 7}, {"a": "1e5000"})
    assert [item.id for item in changes(raw, STUDENTS).items] == [fine, bad]


async def test_over_http_too(raw: Connection, versions_url: str) -> None:
    install_log(raw)
    bad = put_in(raw, nested(3000))
    async with serving(Forge(versions_url)) as served:
        answer = await served.client.get("/versions/ed-fi/students")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "document_unreadable")
        assert f"document {bad} " in answer.json()["error"]["message"]
        raw.execute("UPDATE forge_versions.document SET body = %s WHERE id = %s", (encode({"a": 1}), bad))
        answer = await served.client.get("/versions/ed-fi/students")
        assert [item["id"] for item in answer.json()["items"]] == [bad]


def test_an_older_installation_gets_the_trigger(raw: Connection, versions_url: str) -> None:
    """Though it has such documents, and while others write: it waits for them."""
    raw.execute("DROP TRIGGER document_fit ON forge_versions.document")
    insert(raw, '{"id": 1}', "[1]")
    with connect(versions_url) as writer, writer.transaction():
        insert(writer, '{"id": 2}', "{}")
        with aside(versions_url, install) as other:
            other.waits(raw, on=writer)
            writer.execute("COMMIT")
            assert other.result() is False
    with pytest.raises(psycopg.Error, match="not an object"):
        insert(raw, '{"id": 3}', "[1]")
    assert install(raw) is False
