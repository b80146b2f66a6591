"""What the tests of writing look at: resources, and what is in the journals."""

from typing import Any

from forge.postgres.connection import Connection
from forge.versions.nouns import Resource

STUDENTS = Resource("ed-fi", "students")
SCHOOLS = Resource("ed-fi", "schools")
COURSES = Resource("ed-fi", "courses")
PLANS = Resource("ed-fi", "graduationPlans")


def journals(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every journal, in order."""
    return {
        "document": connection.execute(
            "SELECT version, document FROM forge_versions.document_change ORDER BY 1, 2"
        ).fetchall(),
        "identity": connection.execute(
            "SELECT version, document FROM forge_versions.identity_change ORDER BY 1, 2"
        ).fetchall(),
        "key": connection.execute(
            "SELECT version, document, old_identity, new_identity FROM forge_versions.key_change ORDER BY 1, 2"
        ).fetchall(),
        "deletion": connection.execute(
            "SELECT version, document, subject FROM forge_versions.deletion ORDER BY 1, 2, 3 NULLS FIRST"
        ).fetchall(),
    }


def last_stamp(connection: Connection) -> int:
    """The last that was given."""
    row = connection.execute(
        "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM forge_versions.change_version"
    ).fetchone()
    assert row is not None
    return int(row[0])
