"""One change of documents: a transaction or savepoint, with typed errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from forge.errors import DocumentInvalid, IdentityCycle, IdentityTaken, IsolationUnfit, VersionsError, VersionsMissing
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.queries import query_file

sql: Final = query_file("forge.versions", "writes.sql")

_TOO_MUCH: Final = {"22P05", "22P02", "22003", "54000", "54001"}
"""SQLSTATEs for invalid JSON, or for numbers, nesting or index entries beyond the server's limits."""


@contextmanager
def operation(connection: Connection) -> Iterator[None]:
    """Open a transaction, or a savepoint in the caller's: a failure inside writes nothing."""
    with writable(), typed(), connection.transaction():
        yield


@contextmanager
def writable() -> Iterator[None]:
    """Translate the server's refusals of a document into typed errors."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in _TOO_MUCH:
            raise
        why = (error.diag.message_primary or str(error)).strip()
        raise DocumentInvalid(f"the document cannot be written: {why}", fix=_smaller(error)) from error


@contextmanager
def typed() -> Iterator[None]:
    """Translate errors of the server into those of versions, where they match."""
    with typed_errors():
        try:
            yield
        except psycopg.Error as error:
            if (found := _named(error)) is None:
                raise
            raise found from error


def _named(error: psycopg.Error) -> VersionsError | None:
    line = (error.diag.message_primary or str(error)).strip()
    fix = error.diag.message_hint or "see the documentation of change versions"
    if error.sqlstate == "FG701":
        return IdentityCycle(line, fix=fix)
    if error.sqlstate == "FG702":
        return IsolationUnfit(line, fix=fix)
    if error.sqlstate == "FG705":
        return DocumentInvalid(line, fix=fix)
    if isinstance(error, psycopg.errors.UniqueViolation) and error.diag.table_name == "document":
        detail = error.diag.message_detail or ""
        return IdentityTaken(
            f"another document has that identity: {detail[:200]}", fix="choose another, or delete that document first"
        )
    if error.sqlstate in ("3F000", "42P01", "42883") and "forge_versions" in line:
        return VersionsMissing("change versions are not installed in this database", fix="forge versions init")
    return None


def _smaller(error: psycopg.Error) -> str:
    if error.sqlstate == "54000":
        return (
            "an identity (with those that it contains), a name and a subject are entries of indexes:"
            " about 2,600 bytes at the most"
        )
    return "give JSON whose numbers and nesting PostgreSQL takes"
