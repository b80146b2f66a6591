"""Documents for tests: students, and graduation plans that refer to them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.install import install
from forge.versions.nouns import Resource, decode
from forge.versions.resources import declare

STUDENTS = Resource("ed-fi", "students")
PLANS = Resource("ed-fi", "graduationPlans")

TEMPLATE = "forge_versions_school"

Shown = dict[int, Any]


@contextmanager
def school_database(server: PostgresServer) -> Iterator[str]:
    """The URL of a new database with a school in it: a copy of a template, made when first asked for."""
    with connect(server.url()) as admin:
        made = admin.execute("SELECT FROM pg_database WHERE datname = %s", (TEMPLATE,)).fetchone()
        if made is None:
            admin.execute(f"CREATE DATABASE {TEMPLATE}".encode())
            with connect(server.url(TEMPLATE)) as template:
                school(template)
    with fresh_database(server, template=TEMPLATE) as url:
        yield url


def school(connection: Connection, students: int = 5, *, by_access: bool = False) -> list[int]:
    """Install, and put students and a plan for each; returns the students' ids."""
    install(connection)
    declare(connection, STUDENTS)
    declare(connection, PLANS, by_access=by_access)
    made = []
    for number in range(1, students + 1):
        body = {"name": f"student {number}", "average": Decimal("1.10"), "big": 2**60}
        made.append(put(connection, STUDENTS, {"number": number}, body).document.id)
        plan = {"plan": f"P{number}"}
        put(connection, PLANS, plan, {"credits": number}, {"student": (STUDENTS, {"number": number})})
    return made


def changed(connection: Connection) -> None:
    """Something of every kind: new, other content, another identity, other references, no more."""
    student = find(connection, STUDENTS, {"number": 1})
    assert student is not None
    change_identity(connection, student, {"number": 1001})
    put(connection, STUDENTS, {"number": 77}, {"name": "new"})
    put(connection, PLANS, {"plan": "P77"}, {"credits": 0}, {"student": (STUDENTS, {"number": 77})})
    put(connection, PLANS, {"plan": "P2"}, {"credits": 99}, {"student": (STUDENTS, {"number": 2})})
    moved, gone, renamed = (find(connection, PLANS, {"plan": f"P{number}"}) for number in (3, 4, 5))
    assert moved is not None
    assert gone is not None
    assert renamed is not None
    set_references(connection, moved, {"student": (STUDENTS, {"number": 77}), "tutor": (STUDENTS, {"number": 2})})
    delete(connection, gone)
    change_identity(connection, renamed, {"plan": "P5b"})


def source_of(connection: Connection, resource: Resource, subject: str | None = None) -> Shown:
    """Every document of a resource as it is, read one by one: identity, body, and what it refers to."""
    rows = connection.execute(
        "SELECT d.id FROM forge_versions.document d JOIN forge_versions.resource r ON r.id = d.resource"
        " WHERE (r.project, r.name, r.version) = (%s, %s, %s) AND (%s::text IS NULL OR EXISTS ("
        " SELECT FROM forge_versions.access a WHERE a.document = d.id AND a.subject = %s))",
        (resource.project, resource.name, resource.version, subject, subject),
    ).fetchall()
    found = {}
    for (id,) in rows:
        document = get(connection, id)
        references = {
            name: [reference.document, str(reference.resource), reference.identity]
            for name, reference in document.references.items()
        }
        found[id] = (document.identity, document.body, references)
    return found


def copy_in_sqlite(path: Path, resource: Resource) -> Shown:
    """What a copy in SQLite has."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            'SELECT id, identity, body, "references" FROM documents WHERE resource = ?', (str(resource),)
        ).fetchall()
    connection.close()
    return {id: (decode(identity), decode(body), _references(decode(to))) for id, identity, body, to in rows}


def copy_in_files(folder: Path, resource: Resource) -> Shown:
    """What a copy in a folder has."""
    found = {}
    for path in folder.glob("[0-9]*.json"):
        document = decode(path.read_bytes())
        assert path.stem == str(document["id"])
        found[document["id"]] = (document["identity"], document["body"], _references(document["references"]))
    assert json.loads((folder / ".forge-sync.json").read_text())["resource"]["name"] == resource.name
    return found


def _references(told: dict[str, Any]) -> dict[str, Any]:
    return {name: [to["id"], to["resource"], to["identity"]] for name, to in told.items()}
