"""Copy in a SQLite file, of any number of resources: a table `documents`, with identity, body and references as JSON.

Each page is one transaction with its state. Two concurrent writers of one copy are detected: the state differs from the
one last written.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from forge.errors import MirrorUnusable
from forge.versions.nouns import Deletion, Event, KeyChange, Resource, Upsert, encode
from forge.versions.sync.mirror import MirrorState
from forge.versions.wire import reference_told

PATIENCE: Final = 10.0
"""Seconds that a page waits for other users of the file."""

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS documents (resource TEXT NOT NULL, id INTEGER NOT NULL, version INTEGER NOT NULL,"
    ' identity TEXT NOT NULL, body TEXT NOT NULL, "references" TEXT NOT NULL, generation INTEGER NOT NULL,'
    " PRIMARY KEY (resource, id)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS forge_sync (resource TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID",
)
_UPSERT: Final = (
    "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (resource, id) DO UPDATE SET"
    " version = excluded.version, identity = excluded.identity, body = excluded.body,"
    ' "references" = excluded."references", generation = excluded.generation'
)


class SqliteMirror:
    """A copy in a file, which is created when it is missing."""

    def __init__(self, path: Path, resource: Resource) -> None:
        self.resource = resource
        self._path = path
        self._name = str(resource)
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                with self._transaction():
                    for statement in _TABLES:
                        self._connection.execute(statement)
                self._left = self._stored()
            except BaseException:
                self._connection.close()
                raise

    def state(self) -> MirrorState | None:
        return None if self._left is None else msgspec.json.decode(self._left, type=MirrorState)

    def take(self, events: Sequence[Event], state: MirrorState) -> None:
        with self._errors(), self._transaction():
            for event in events:
                self._one(event, state.generation)
            self._keep(state)

    def listed(self, state: MirrorState) -> int:
        with self._errors(), self._transaction():
            removed = self._connection.execute(
                "DELETE FROM documents WHERE resource = ? AND generation <> ?", (self._name, state.generation)
            ).rowcount
            self._keep(state)
        return removed

    def close(self) -> None:
        self._connection.close()

    def _one(self, event: Event, generation: int) -> None:
        match event:
            case Upsert(version=version, document=document):
                references = {name: reference_told(to) for name, to in sorted(document.references.items())}
                texts = (encode(document.identity), encode(document.body), encode(references))
                self._connection.execute(_UPSERT, (self._name, document.id, version, *texts, generation))
            case Deletion():
                self._connection.execute(
                    "DELETE FROM documents WHERE resource = ? AND id = ? AND version <= ?",
                    (self._name, event.id, event.version),
                )
            case KeyChange():
                self._connection.execute(
                    "UPDATE documents SET identity = ? WHERE resource = ? AND id = ? AND version <= ?",
                    (encode(event.new_identity), self._name, event.id, event.version),
                )

    def _stored(self) -> str | None:
        row = self._connection.execute("SELECT state FROM forge_sync WHERE resource = ?", (self._name,)).fetchone()
        return None if row is None else str(row[0])

    def _keep(self, state: MirrorState) -> None:
        if self._stored() != self._left:
            raise MirrorUnusable(f"somebody else keeps the copy in {self._path}", fix="run one sync at a time")
        text = msgspec.json.encode(state).decode()
        self._connection.execute(
            "INSERT INTO forge_sync VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET state = excluded.state",
            (self._name, text),
        )
        self._left = text

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        before = getattr(self, "_left", None)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._left = before
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise MirrorUnusable(
                f"SQLite cannot keep a copy in {self._path}: {error}", fix="name a file that SQLite can read and write"
            ) from error
        except OSError as error:
            raise MirrorUnusable(f"{self._path} cannot be made: {error.strerror}", fix="name another file") from error
