"""Change versions: "what changed since X?" for documents whose representation depends on other documents.

A document's version is derived on reading, from its own stamps and those of the documents that it refers to; a write
stamps only what it changed.

    install(connection)
    students, plans = Resource("ed-fi", "students"), Resource("ed-fi", "graduationPlans")
    declare(connection, students), declare(connection, plans)
    ada = put(connection, students, {"id": 7}, {"name": "Ada"}).document
    put(connection, plans, {"year": 2026}, {"credits": 24}, references={"student": ada})
    since = newest(connection)
    change_identity(connection, ada, {"id": 8})
    changes(connection, plans, since + 1).items         # the plan: it shows another student

============  ==========================================================================================
documents     put, delete and refer to documents; `identity` changes their keys
resources     the kinds of documents, each declared once
access        the subjects that may see each document, where a resource is by access
triggers      the same for applications that write with their own SQL
stamps        the newest version, below which nothing is uncommitted
reading       changed and deleted documents and changed keys, in a window of versions
strategies    data maintained on writing to make reading cheaper; the answers are the same
============  ==========================================================================================

This package exports the names that applications need; copies are in `forge.versions.sync`.
"""

from forge.versions.access import grant, revoke
from forge.versions.available import Available, available
from forge.versions.documents import delete, find, get, put, set_references
from forge.versions.identity import change_identity
from forge.versions.install import install
from forge.versions.nouns import Deletion, Document, Event, KeyChange, Page, Reference, Resource, Upsert
from forge.versions.reading import changes, deletes, key_changes, pages, representation, stream
from forge.versions.resources import declare
from forge.versions.retention import VersionPolicy as Policy
from forge.versions.retention import maintain
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
