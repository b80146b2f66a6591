"""Writing documents: put, set_references, delete, on the caller's connection and in its transaction.

A change takes one stamp and journals what it changed, in the same transaction; what changes nothing takes none. Where a
change is refused nothing of it was written, whatever else the transaction did. Who refers to a document holds it until
his transaction ends, so it keeps its identity until then; changes of identities are in `forge.versions.identity`.

Two transactions that change each other's documents in opposite order may deadlock; the server then ends one of them
with `psycopg.errors.DeadlockDetected`, and it can be done again.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from forge.changelog.connection import Connection
from forge.versions.errors import IdentityCycle, IdentityMismatch, MissingReference, StillReferenced, UnknownDocument
from forge.versions.nouns import Deletion, Document, Json, Reference, Resource, Upsert, decode, encode
from forge.versions.operation import operation, sql, typed
from forge.versions.resources import resource_id
from forge.versions.stamps import stamped

Target = tuple[Resource, Mapping[str, Any]] | int | Document
"""Where a reference leads: a resource and an identity in it, or a document, by its id or itself."""


class Held(msgspec.Struct, frozen=True):
    """A document that a reference leads to, which cannot change its identity now."""

    child: int
    identity: Json


def put(
    connection: Connection,
    resource: Resource,
    identity: Mapping[str, Any],
    body: Mapping[str, Any],
    references: Mapping[str, Target] | None = None,
    in_identity: Collection[str] = (),
) -> Upsert:
    """Make the document with that identity, or give it that body and exactly those references.

    `in_identity` names the references whose documents' identities are part of this one's, under the same names; the
    caller may leave these parts out of `identity`. The answer's version is that of the content, which a put that
    changes nothing leaves as it was.
    """
    wanted = references or {}
    with operation(connection):
        number = resource_id(connection, resource)
        held = hold(connection, wanted, in_identity)
        parameters = {
            "resource": number,
            "identity": encode(complete(identity, held, in_identity)),
            "body": encode(body),
            "edges": _edges(held, in_identity),
        }
        document = _put(connection, parameters, whole=bool(in_identity))
        found = _read(connection, document)
    return Upsert(found.content_version, found)


def _put(connection: Connection, parameters: dict[str, Any], *, whole: bool) -> int:
    """Write it; `whole` when references are part of the identity, which nobody may then refer to meanwhile."""
    while True:
        row = connection.execute(sql("find_whole" if whole else "find"), parameters).fetchone()
        if row is not None:
            document, same = row
            if not same:
                _write(connection, document, parameters, whole=whole)
            return int(document)
        with stamped(connection) as stamp:
            made = connection.execute(sql("insert"), {**parameters, "stamp": stamp}).fetchone()
            if made is not None:
                _write_edges(connection, made[0], parameters)
                return int(made[0])
        # somebody else made it meanwhile: now it is there to be found


def set_references(
    connection: Connection,
    document: int | Document,
    references: Mapping[str, Target],
    in_identity: Collection[str] = (),
) -> Upsert:
    """Give a document exactly these references. Where they are part of its identity, that follows them."""
    number = id_of(document)
    with operation(connection):
        held = hold(connection, references, in_identity)
        parameters = {"document": number, "body": None, "edges": _edges(held, in_identity)}
        row = connection.execute(sql("edges_same"), parameters).fetchone()
        if row is None:
            raise unknown(number)
        if not row[0]:
            _write(connection, number, parameters, whole=bool(in_identity))
        found = _read(connection, number)
    return Upsert(max(found.content_version, found.identity_version), found)


def delete(connection: Connection, document: int | Document) -> Deletion:
    """Delete a document that nobody else refers to."""
    number = id_of(document)
    with operation(connection):
        if connection.execute(sql("held"), {"document": number}).fetchone() is None:
            raise unknown(number)
        found = _read(connection, number)
        if (row := connection.execute(sql("referrer"), {"document": number}).fetchone()) is not None:
            raise StillReferenced(
                f"document {row[0]} refers to {found.resource} {encode(found.identity)} as {row[1]}",
                fix="delete it first, or let it refer to another",
                by=int(row[0]),
            )
        with stamped(connection) as stamp:
            connection.execute(sql("delete"), {"document": number, "stamp": stamp})
    return Deletion(stamp, number, found.resource, found.identity)


def get(connection: Connection, document: int) -> Document:
    """A document by its id."""
    with typed():
        return _read(connection, document)


def find(connection: Connection, resource: Resource, identity: Mapping[str, Any]) -> Document | None:
    """The document with that identity, if there is one."""
    with typed():
        parameters = {"resource": resource_id(connection, resource), "identity": encode(identity)}
        row = connection.execute(sql("identified"), parameters).fetchone()
        return None if row is None else _read(connection, int(row[0]))


def hold(
    connection: Connection, references: Mapping[str, Target], in_identity: Collection[str] = ()
) -> dict[str, Held]:
    """Hold the documents that references lead to, in one order for all; raise where one leads nowhere."""
    if strange := sorted(set(in_identity) - references.keys()):
        raise MissingReference(
            f"the identity is to contain {strange[0]!r}, which is no reference",
            fix="give that reference",
            name=strange[0],
        )
    if not references:
        return {}
    wanted = [_wanted(connection, name, target) for name, target in references.items()]
    rows = connection.execute(sql("hold"), {"wanted": msgspec.json.encode(wanted).decode()}).fetchall()
    for name, child, _ in rows:
        if child is None:
            raise MissingReference(
                f"the reference {name!r} leads to {_shown(references[name])}, which is not there",
                fix="put that document first",
                name=name,
            )
    return {name: Held(child, decode(identity)) for name, child, identity in rows}


def complete(identity: Mapping[str, Any], held: Mapping[str, Held], in_identity: Collection[str]) -> Json:
    """An identity with the identities that it has to contain."""
    whole = dict(identity)
    for name in in_identity:
        if whole.setdefault(name, held[name].identity) != held[name].identity:
            raise mismatch(name)
    return whole


def mismatch(name: str) -> IdentityMismatch:
    return IdentityMismatch(
        f"the identity contains another {name!r} than the reference of that name leads to",
        fix=f"leave {name!r} out of the identity, or let the reference lead there",
    )


def unknown(document: int) -> UnknownDocument:
    return UnknownDocument(f"there is no document {document}", fix="it was deleted, or never put")


def id_of(document: int | Document) -> int:
    return document if isinstance(document, int) else document.id


def _write(connection: Connection, document: int, parameters: dict[str, Any], *, whole: bool) -> None:
    """Another content of a document that is held; where references are part of its identity, that follows them."""
    if whole:
        children = [child for child, inside in msgspec.json.decode(parameters["edges"]).values() if inside]
        row = connection.execute("SELECT %s = ANY (forge_versions.hold_contained(%s))", (document, children)).fetchone()
        if row == (True,):
            raise IdentityCycle(
                f"the identity of document {document} would contain itself",
                fix="leave one of the references out of the identity",
            )
        connection.execute("SELECT forge_versions.hold_dependents(%s)", ([document],))
    with stamped(connection) as stamp:
        connection.execute(sql("content"), {**parameters, "document": document, "stamp": stamp})
        _write_edges(connection, document, parameters)
        if whole:
            connection.execute("SELECT forge_versions.carry(%s, %s)", ([document], stamp))


def _write_edges(connection: Connection, document: int, parameters: dict[str, Any]) -> None:
    given = {"document": document, "edges": parameters["edges"]}
    connection.execute(sql("drop_edges"), given)
    if given["edges"] != "{}":
        connection.execute(sql("write_edges"), given)


def _read(connection: Connection, document: int) -> Document:
    row = connection.execute(sql("document"), {"document": document}).fetchone()
    if row is None:
        raise unknown(document)
    number, project, name, version, identity, body, content, identity_version, references = row
    return Document(
        number,
        Resource(project, name, version),
        decode(identity),
        decode(body),
        {each["name"]: _reference(each) for each in _list(references)},
        content,
        identity_version,
    )


def _list(text: str) -> list[Json]:
    found: list[Json] = decode(text)  # type: ignore[assignment]
    return found


def _reference(found: Json) -> Reference:
    resource = Resource(found["project"], found["resource"], found["version"])
    return Reference(found["document"], resource, found["identity"], found["in_identity"])


def _edges(held: Mapping[str, Held], in_identity: Collection[str]) -> str:
    return encode({name: [one.child, name in in_identity] for name, one in held.items()})


def _wanted(connection: Connection, name: str, target: Target) -> dict[str, Any]:
    if isinstance(target, tuple):
        resource, identity = target
        return {
            "name": name,
            "resource": resource_id(connection, resource),
            "identity": msgspec.Raw(encode(identity).encode()),
        }
    return {"name": name, "document": id_of(target)}


def _shown(target: Target) -> str:
    return f"{target[0]} {encode(target[1])}" if isinstance(target, tuple) else f"document {id_of(target)}"
