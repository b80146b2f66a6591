"""Write documents: put, set_references, delete, on the caller's connection and in its transaction.

A change takes one stamp and journals what it changed, in the same transaction; a write that changes nothing takes none.
A refused change has written nothing, whatever else the transaction did. A transaction that refers to a document locks
it until it ends, so the document keeps its identity until then; changes of identities are in `forge.versions.identity`.

Two transactions that change each other's documents in opposite order may deadlock; the server then ends one of them
with `psycopg.errors.DeadlockDetected`, and it can be retried.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from forge.errors import IdentityCycle, IdentityMismatch, MissingReference, StillReferenced, UnknownDocument
from forge.postgres.connection import Connection
from forge.versions.nouns import (
    Deletion,
    Document,
    Json,
    Reference,
    Resource,
    Upsert,
    decode,
    decode_list,
    encode,
    readable,
)
from forge.versions.operation import operation, sql, typed, writable
from forge.versions.resources import resource_id
from forge.versions.stamps import stamped
from forge.versions.texts import LARGEST_ID, json_of, names_of, text_of

Target = tuple[Resource, Mapping[str, Any]] | int | Document
"""The target of a reference: a resource and an identity in it, or a document, by its id or itself."""


class LockedTarget(msgspec.Struct, frozen=True):
    """A locked target of a reference; its identity cannot change."""

    child: int
    identity: Json


class KnownDocument(msgspec.Struct, frozen=True):
    """An existing document and its references: children by name, and the names that are in its identity."""

    document: int
    children: dict[str, int]
    inside: frozenset[str]


def put(
    connection: Connection,
    resource: Resource,
    identity: Mapping[str, Any],
    body: Mapping[str, Any],
    references: Mapping[str, Target] | None = None,
    in_identity: Collection[str] | None = None,
) -> Upsert:
    """Create the document with that identity, or give it that body and exactly those references.

    `in_identity` names the references whose documents' identities are part of this one's, under the same names; the
    caller may omit these parts from `identity`. If the body or the references are not given, they stay unchanged: `{}`
    removes the references. The result's version is that of the content; a put that changes nothing leaves it unchanged.
    """
    named = None if in_identity is None else names_of(in_identity)
    asked = {"identity": json_of(identity, "identity"), "body": json_of(body, "body")}
    with operation(connection):
        number = resource_id(connection, resource)
        while (done := _put(connection, {**asked, "resource": number}, identity, references, named)) is None:
            pass
        found = _read(connection, done)
    return Upsert(found.content_version, found)


def _put(
    connection: Connection,
    asked: dict[str, Any],
    identity: Mapping[str, Any],
    references: Mapping[str, Target] | None,
    named: frozenset[str] | None,
) -> int | None:
    """Put a document; None when another transaction created or deleted it before it was locked."""
    if references is None and named is None:
        return _put_held(connection, {**asked, "edges": None}, _found(connection, asked), whole=False)
    keeps = references is None or named is None
    known = _known(connection, "known", asked) if keeps else None
    wanted, inside = _kept(known, references, named)
    held = hold(connection, wanted, inside, known)
    whole = json_of(complete(identity, held, inside), "identity")
    parameters = {**asked, "identity": whole, "edges": _edges(held, inside)}
    document = _found(connection, parameters, whole=bool(inside))
    now = _known(connection, "known_by_id", {"document": document}) if keeps and document is not None else None
    return _put_held(connection, parameters, document, whole=bool(inside)) if now == known else None


def _found(connection: Connection, parameters: dict[str, Any], *, whole: bool = False) -> int | None:
    """Return the document with an identity, locked; `whole` also blocks new references to it."""
    row = connection.execute(sql("find_whole" if whole else "find"), parameters).fetchone()
    return None if row is None else int(row[0])


def _put_held(connection: Connection, parameters: dict[str, Any], document: int | None, *, whole: bool) -> int | None:
    """Write the locked document, or else a new one; None when another transaction created it meanwhile."""
    if document is None:
        with stamped(connection) as stamp:
            made = connection.execute(sql("insert"), {**parameters, "stamp": stamp}).fetchone()
            if made is not None:
                _write_edges(connection, made[0], parameters)
        return None if made is None else int(made[0])
    if connection.execute(sql("content_same"), {**parameters, "document": document}).fetchone() != (True,):
        _write(connection, document, parameters, whole=whole)
    return document


def set_references(
    connection: Connection,
    document: int | Document,
    references: Mapping[str, Target],
    in_identity: Collection[str] | None = None,
) -> Upsert:
    """Give a document exactly these references. Where they are part of its identity, the identity follows them.

    Without `in_identity`, those of these references that were part of the identity stay part of it.
    """
    number = id_of(document)
    named = None if in_identity is None else names_of(in_identity)
    with operation(connection):
        while not _refer(connection, number, references, named):
            pass
        found = _read(connection, number)
    return Upsert(max(found.content_version, found.identity_version), found)


def _refer(
    connection: Connection, document: int, references: Mapping[str, Target], named: frozenset[str] | None
) -> bool:
    """Return whether it was done; False when the parts to keep were changed before they were locked."""
    known = _known(connection, "known_by_id", {"document": document})
    if known is None:
        raise unknown(document)
    wanted, inside = _kept(known, references, named)
    held = hold(connection, wanted, inside, known)
    if connection.execute(sql("held"), {"document": document}).fetchone() is None:
        raise unknown(document)
    if named is None and _known(connection, "known_by_id", {"document": document}) != known:
        return False
    parameters = {"document": document, "body": None, "edges": _edges(held, inside)}
    if connection.execute(sql("edges_same"), parameters).fetchone() != (True,):
        _write(connection, document, parameters, whole=bool(inside))
    return True


def delete(connection: Connection, document: int | Document) -> Deletion:
    """Delete a document that no other document refers to."""
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
    """Return a document by its id."""
    with typed():
        return _read(connection, id_of(document))


def find(connection: Connection, resource: Resource, identity: Mapping[str, Any]) -> Document | None:
    """Return the document with that identity, if there is one."""
    with writable(), typed():
        parameters = {"resource": resource_id(connection, resource), "identity": json_of(identity, "identity")}
        row = connection.execute(sql("identified"), parameters).fetchone()
        return None if row is None else _read(connection, int(row[0]))


def hold(
    connection: Connection,
    references: Mapping[str, Target],
    in_identity: Collection[str],
    parent: KnownDocument | None = None,
) -> dict[str, LockedTarget]:
    """Lock the targets of references, and the referring document if known, in one global order.

    Raise where a target does not exist.
    """
    if strange := sorted(set(in_identity) - references.keys()):
        raise MissingReference(
            f"the identity is to contain {strange[0]!r}, which is no reference",
            fix="give that reference",
            name=strange[0],
        )
    if not references:
        return {}
    wanted = [_wanted(connection, name, target) for name, target in references.items()]
    asked = {
        "wanted": msgspec.json.encode(wanted).decode(),
        "parent": None if parent is None else parent.document,
        "whole": bool(in_identity),
    }
    rows = connection.execute(sql("hold"), asked).fetchall()
    for name, child, _ in rows:
        if child is None:
            raise MissingReference(
                f"the reference {name!r} leads to {_shown(references[name])}, which is not there",
                fix="put that document first",
                name=name,
            )
    return {name: _held(child, identity) for name, child, identity in rows}


def complete(identity: Mapping[str, Any], held: Mapping[str, LockedTarget], in_identity: Collection[str]) -> Json:
    """Return an identity completed with the identities that it must contain."""
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
    """Return the id of a document; raise for a number that no document can have."""
    number = document if isinstance(document, int) else document.id
    if not 0 < number <= LARGEST_ID:
        raise unknown(number)
    return number


def _known(connection: Connection, query: str, asked: Mapping[str, Any]) -> KnownDocument | None:
    row = connection.execute(sql(query), asked).fetchone()
    return None if row is None else KnownDocument(int(row[0]), row[1], frozenset(row[2]))


def _kept(
    known: KnownDocument | None, references: Mapping[str, Target] | None, named: frozenset[str] | None
) -> tuple[Mapping[str, Target], frozenset[str]]:
    """Return the references for a document and the names in its identity: the given ones, or the existing ones."""
    wanted = references if references is not None else known.children if known is not None else {}
    if named is not None:
        return wanted, named
    return wanted, known.inside & wanted.keys() if known is not None else frozenset()


def _write(connection: Connection, document: int, parameters: dict[str, Any], *, whole: bool) -> None:
    """Write new content of a locked document; where references are part of its identity, the identity follows them."""
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
    if parameters["edges"] is None:
        return
    given = {"document": document, "edges": parameters["edges"]}
    connection.execute(sql("drop_edges"), given)
    if given["edges"] != "{}":
        connection.execute(sql("write_edges"), given)


def _read(connection: Connection, document: int) -> Document:
    row = connection.execute(sql("document"), {"document": document}).fetchone()
    if row is None:
        raise unknown(document)
    number, project, name, version, identity, body, content, identity_version, references = row
    with readable(number):
        return Document(
            number,
            Resource(project, name, version),
            decode(identity),
            decode(body),
            {each["name"]: _reference(each) for each in decode_list(references)},
            content,
            identity_version,
        )


def _held(child: int, identity: str) -> LockedTarget:
    with readable(child):
        return LockedTarget(child, decode(identity))


def _reference(found: Json) -> Reference:
    resource = Resource(found["project"], found["resource"], found["version"])
    return Reference(found["document"], resource, found["identity"], found["in_identity"])


def _edges(held: Mapping[str, LockedTarget], in_identity: Collection[str]) -> str:
    return encode({name: [one.child, name in in_identity] for name, one in held.items()})


def _wanted(connection: Connection, name: str, target: Target) -> dict[str, Any]:
    named = {"name": text_of(name, "name of a reference")}
    if isinstance(target, tuple):
        resource, identity = target
        text = json_of(identity, f"identity that {name!r} leads to")
        return {**named, "resource": resource_id(connection, resource), "identity": msgspec.Raw(text.encode())}
    number = target if isinstance(target, int) else target.id
    return {**named, "document": number if 0 < number <= LARGEST_ID else None}


def _shown(target: Target) -> str:
    return (
        f"{target[0]} {encode(target[1])}"
        if isinstance(target, tuple)
        else f"document {target if isinstance(target, int) else target.id}"
    )
