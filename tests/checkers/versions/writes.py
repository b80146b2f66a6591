"""One random change, by the API or by SQL as an application with its own statements would send."""

import random
from collections.abc import Callable
from typing import Any

import psycopg

from forge.errors import VersionsError
from forge.postgres.connection import Connection
from forge.versions.access import grant, revoke
from forge.versions.documents import delete, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.nouns import encode
from tests.checkers.versions.plan import BY_ACCESS, RESOURCES, SUBJECTS

Hand = Callable[[Connection, random.Random, int], None]
_REFUSALS = (psycopg.errors.UniqueViolation, psycopg.errors.ForeignKeyViolation)


def change(hand: Hand, connection: Connection, chance: random.Random, keys: int) -> bool:
    """Change something; False when it was refused, and then nothing was written."""
    try:
        with connection.transaction():
            hand(connection, chance, keys)
    except (VersionsError, *_REFUSALS):
        return False
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith("FG70"):
            raise
        return False
    return True


def by_api(connection: Connection, chance: random.Random, keys: int) -> None:
    """One of the functions of forge.versions."""
    one = _some(connection, chance, 1)
    references = dict(zip("abc", _some(connection, chance, chance.randrange(4)), strict=False))
    inside = {name for name in references if chance.random() < 0.3}
    roll = chance.random()
    if not one or roll < 0.25:
        put(connection, chance.choice(RESOURCES), _identity(chance, keys), _body(chance), references, inside)
    elif roll < 0.4:
        known = get(connection, one[0])
        given = references if chance.random() < 0.5 else None
        put(connection, known.resource, known.identity, _body(chance), given)
    elif roll < 0.6:
        change_identity(connection, one[0], _identity(chance, keys))
    elif roll < 0.75:
        set_references(connection, one[0], references, inside)
    elif roll < 0.82:
        delete(connection, one[0])
    else:
        _access(connection, chance)


def by_sql(connection: Connection, chance: random.Random, keys: int) -> None:
    """A statement that changes one row or several."""
    some = _some(connection, chance, chance.randint(1, 3))
    roll = chance.random()
    if not some or roll < 0.25:
        connection.execute(
            "INSERT INTO forge_versions.document (resource, identity, body)"
            " SELECT r.id, i::jsonb, %s::jsonb FROM forge_versions.resource r, unnest(%s::text[]) i WHERE r.name = %s"
            " ON CONFLICT DO NOTHING",
            (
                encode(_body(chance)),
                sorted({encode(_identity(chance, keys)) for _ in range(chance.randint(1, 3))}),
                chance.choice(RESOURCES).name,
            ),
        )
    elif roll < 0.45:
        connection.execute(
            "UPDATE forge_versions.document SET body = %s::jsonb WHERE id = ANY (%s)", (encode(_body(chance)), some)
        )
    elif roll < 0.6:
        connection.execute(
            "UPDATE forge_versions.document SET identity = %s::jsonb WHERE id = %s",
            (encode(_identity(chance, keys)), some[0]),
        )
    elif roll < 0.8:
        connection.execute(
            "INSERT INTO forge_versions.reference AS r (parent, name, child, in_identity)"
            " SELECT p, %s, %s, %s FROM unnest(%s::bigint[]) p"
            " ON CONFLICT (parent, name) DO UPDATE SET child = excluded.child, in_identity = excluded.in_identity",
            (chance.choice("abc"), some[0], chance.random() < 0.3, some),
        )
    elif roll < 0.85:
        connection.execute("DELETE FROM forge_versions.reference WHERE parent = ANY (%s)", (some,))
    elif roll < 0.9:
        connection.execute("DELETE FROM forge_versions.document WHERE id = ANY (%s)", (some,))
    else:
        _access(connection, chance)


def _access(connection: Connection, chance: random.Random) -> None:
    """Let somebody see a document, or no more: there is no other way than the API."""
    if seen := _some(connection, chance, 1, chance.choice(BY_ACCESS).name):
        act = grant if chance.random() < 0.6 else revoke
        act(connection, seen[0], chance.choice(SUBJECTS))


def _some(connection: Connection, chance: random.Random, count: int, resource: str = "%") -> list[int]:
    rows = connection.execute(
        "SELECT d.id FROM forge_versions.document d JOIN forge_versions.resource r ON r.id = d.resource"
        " WHERE r.name LIKE %s ORDER BY d.id",
        (resource,),
    ).fetchall()
    return [id for (id,) in chance.sample(rows, min(count, len(rows)))]


def _identity(chance: random.Random, keys: int) -> dict[str, Any]:
    return {"key": chance.randrange(keys)}


def _body(chance: random.Random) -> dict[str, Any]:
    return {"n": chance.randrange(4)}
