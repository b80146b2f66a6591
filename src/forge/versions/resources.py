"""Resources of a database: the kinds of documents that may be put, each declared once."""

from forge.errors import UnknownResource
from forge.postgres.connection import Connection
from forge.postgres.text import unstorable
from forge.versions.nouns import Resource
from forge.versions.operation import operation, sql, typed


def declare(connection: Connection, resource: Resource, *, by_access: bool | None = None) -> int:
    """Declare a resource, and whether its documents are visible to all, or only to subjects with access to each.

    Declaring it again changes only that visibility, and only if it is given; the default of a new one is visible to
    all. Return its number.
    """
    for part in (resource.project, resource.name, resource.version):
        if not part or "/" in part or unstorable(part):
            raise UnknownResource(f"{part!r} cannot be a part of a resource's name", fix="write project/name[/version]")
    with operation(connection):
        connection.execute(sql("declare"), {**_key(resource), "by_access": by_access})
        return resource_id(connection, resource)


def resources(connection: Connection) -> dict[Resource, bool]:
    """Return every resource, and whether it is by access."""
    with typed():
        rows = connection.execute(sql("resources")).fetchall()
    return {Resource(project, name, version): bool(by_access) for project, name, version, by_access in rows}


def resource_id(connection: Connection, resource: Resource) -> int:
    """Return the number of a resource in the tables."""
    if any(unstorable(part) for part in _key(resource).values()):
        raise UnknownResource("there can be no resource of such a name", fix="write it without U+0000")
    with typed():
        row = connection.execute(sql("resource"), _key(resource)).fetchone()
    if row is None:
        raise UnknownResource(f"there is no resource {resource}", fix="declare it, or correct its name")
    return int(row[0])


def _key(resource: Resource) -> dict[str, str]:
    return {"project": resource.project, "name": resource.name, "version": resource.version}
