"""Events of documents as JSON for other programs: the answers of a server, the input of a sync, the output of a
command.

Numbers survive a round trip exactly. Unknown fields of a later server are ignored.

>>> students = Resource("ed-fi", "students")
>>> told(Deletion(12, 7, students, {"number": 604}))
{'type': 'delete', 'changeVersion': 12, 'id': 7, 'identity': {'number': 604}}
>>> read(students, told(KeyChange(13, 8, students, {"number": 1}, {"number": 2}))).new_identity
{'number': 2}
"""

from typing import Any

from forge.errors import DecodeError
from forge.versions.nouns import Deletion, Document, Event, Json, KeyChange, Reference, Resource, Upsert


def told(event: Event) -> Json:
    """Return an event as a JSON object."""
    if isinstance(event, Deletion):
        return {"type": "delete", "changeVersion": event.version, "id": event.id, "identity": event.identity}
    if isinstance(event, KeyChange):
        return {
            "type": "keyChange",
            "changeVersion": event.version,
            "id": event.id,
            "oldIdentity": event.old_identity,
            "newIdentity": event.new_identity,
        }
    document = event.document
    return {
        "type": "upsert",
        "changeVersion": event.version,
        "id": document.id,
        "identity": document.identity,
        "body": document.body,
        "references": {name: reference_told(reference) for name, reference in sorted(document.references.items())},
        "contentVersion": document.content_version,
        "identityVersion": document.identity_version,
    }


def reference_told(reference: Reference) -> Json:
    """Return the target of a reference as a JSON object."""
    return {
        "id": reference.document,
        "resource": str(reference.resource),
        "identity": reference.identity,
        **({"inIdentity": True} if reference.in_identity else {}),
    }


def read(resource: Resource, value: Any) -> Event:
    """Parse the event of a JSON object; raise DecodeError if it is none."""
    try:
        kind, version, id = str(value["type"]), int(value["changeVersion"]), int(value["id"])
        if kind == "delete":
            return Deletion(version, id, resource, dict(value["identity"]))
        if kind == "keyChange":
            return KeyChange(version, id, resource, dict(value["oldIdentity"]), dict(value["newIdentity"]))
        references = {name: _reference(reference) for name, reference in value["references"].items()}
        stamps = int(value["contentVersion"]), int(value["identityVersion"])
        identity, body = dict(value["identity"]), dict(value["body"])
        return Upsert(version, Document(id, resource, identity, body, references, *stamps))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DecodeError(
            f"a change is told in a way that is not understood: {error!r}",
            fix="use the URL of a Forge server of this version",
        ) from None


def _reference(value: Any) -> Reference:
    resource = Resource.parse(value["resource"])
    return Reference(int(value["id"]), resource, dict(value["identity"]), bool(value.get("inIdentity", False)))
