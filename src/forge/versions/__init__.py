"""Change versions: "what changed since X?" for documents whose representation depends on other documents.

A document's version is derived when it is asked for, from its own stamps and those of what it refers to; a write stamps
what it changed and nothing else.

    install(connection)
    students, plans = Resource("ed-fi", "students"), Resource("ed-fi", "graduationPlans")
    declare(connection, students), declare(connection, plans)
    ada = put(connection, students, {"id": 7}, {"name": "Ada"}).document
    put(connection, plans, {"year": 2026}, {"credits": 24}, references={"student": ada})
    since = newest(connection)
    change_identity(connection, ada, {"id": 8})
    changes(connection, plans, since + 1).items         # the plan: it shows another student

============  ==========================================================================================
documents     putting, deleting and referring to documents; `identity` changes their keys
resources     the kinds of documents, each declared once
access        who sees which document, where a resource is by access
triggers      the same for applications that write by SQL of their own
stamps        the newest version, below which nothing is still uncommitted
reading       what changed, was deleted, or has another key, in a window of versions
strategies    what is kept on writing so that reading costs less; the answers are the same
============  ==========================================================================================

What applications need of these is here by name; copies are in `forge.versions.sync`.
"""

from forge.versions.access import grant, revoke
from forge.versions.available import Available, available
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.install import install
from forge.versions.nouns import Deletion, Document, Event, KeyChange, Page, Reference, Resource, Upsert
from forge.versions.reading import changes, deletes, key_changes, pages, representation, stream
from forge.versions.resources import declare
from forge.versions.retention import Policy, maintain
from forge.versions.stamps import newest
from forge.versions.strategies import use_strategy
from forge.versions.triggers import write_by

__all__ = [
    "Available",
    "Deletion",
    "Document",
    "Event",
    "KeyChange",
    "Page",
    "Policy",
    "Reference",
    "Resource",
    "Upsert",
    "available",
    "change_identity",
    "changes",
    "declare",
    "delete",
    "deletes",
    "find",
    "get",
    "grant",
    "install",
    "key_changes",
    "maintain",
    "newest",
    "pages",
    "put",
    "representation",
    "revoke",
    "set_references",
    "stream",
    "use_strategy",
    "write_by",
]
