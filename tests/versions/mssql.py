"""A store in SQL Server, by pymssql: documents are written by plain SQL, and the triggers do the rest.

`FORGE_TEST_SQLSERVER_URL` names a server and a user who may make databases: `mssql://sa:password@host:1433`. pymssql is
imported only then (`pip install pymssql`); no dependency of Forge.
"""

import importlib
import json
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from forge.cli.versions import sqlserver_script
from forge.errors import WindowExpired
from forge.postgres.queries import queries
from forge.versions.strategies import Strategy
from tests.versions.stores import Found, Item, Kind, Rows, Store, spelled

URL: Final = os.environ.get("FORGE_TEST_SQLSERVER_URL")
UNSET: Final = "FORGE_TEST_SQLSERVER_URL names no server (mssql://user:password@host:1433, with pymssql installed)"

PARAMETERS: Final = {
    "resource": "integer",
    "min": "bigint",
    "max": "bigint",
    "after_version": "bigint",
    "after_document": "bigint",
    "after_kind": "integer",
    "limit": "integer",
    "subject": "nvarchar(256)",
    "documents": "nvarchar(max)",
}
QUERIES: Final = {"journal": "changes", "denormalized": "changes_denormalized", "monotonic": "changes_monotonic"}
STATEMENTS: Final = {
    "declare": "INSERT INTO forge_versions.resource (project, name, version, by_access)"
    " VALUES (N'test', @name, N'1', @by_access)",
    "resource": "SELECT id FROM forge_versions.resource WHERE name = @name",
    "put": "INSERT INTO forge_versions.document (resource, [identity], body)"
    " SELECT r.id, @identity, N'{}' FROM forge_versions.resource AS r WHERE r.name = @name;"
    " SELECT CAST(SCOPE_IDENTITY() AS bigint) AS id",
    "change": "UPDATE forge_versions.document SET body = @body WHERE id = @document",
    "rename": "UPDATE forge_versions.document SET [identity] = @identity WHERE id = @document",
    "unrefer": "DELETE FROM forge_versions.reference WHERE parent = @document",
    "refer": "INSERT INTO forge_versions.reference (parent, name, child, in_identity)"
    " SELECT @document, e.[key], CAST(e.[value] AS bigint), @in_identity FROM OPENJSON(@edges) AS e",
    "delete": "DELETE FROM forge_versions.document WHERE id = @document",
    "grant": "EXEC forge_versions.grant_access @document, @subject",
    "revoke": "EXEC forge_versions.revoke_access @document, @subject",
    "newest": "EXEC forge_versions.newest @version OUTPUT; SELECT @version AS version",
    "strategy": "SELECT strategy FROM forge_versions.setting",
    "use_strategy": "EXEC forge_versions.use_strategy @strategy, @batch",
    "retain": "EXEC forge_versions.retain @oldest",
    "identity": "SELECT [identity] FROM forge_versions.document WHERE id = @document",
    "documents": "SELECT d.id, r.name, d.content_version, d.identity_version FROM forge_versions.document AS d"
    " JOIN forge_versions.resource AS r ON r.id = d.resource",
    "edges": "SELECT parent, child FROM forge_versions.reference",
    "access": "SELECT subject, document, version FROM forge_versions.access",
}
"""Each with parameters by @name, as the page queries have them."""
TYPES: Final = {
    **PARAMETERS,
    "name": "nvarchar(256)",
    "by_access": "bit",
    "identity": "nvarchar(max)",
    "body": "nvarchar(max)",
    "edges": "nvarchar(max)",
    "in_identity": "bit",
    "document": "bigint",
    "strategy": "nvarchar(16)",
    "batch": "integer",
    "oldest": "bigint",
    "version": "bigint",
}


def batches(script: str) -> list[str]:
    """The batches of a script, as sqlcmd cuts them."""
    return [batch.strip() for batch in re.split(r"^GO$", script, flags=re.MULTILINE) if batch.strip()]


def declared(statement: str, given: Mapping[str, Any]) -> str:
    """A statement with its parameters before it: the driver writes values where `%(name)s` is."""
    wanted = sorted({name for name in re.findall(r"@(\w+)", statement) if name in TYPES})
    values = [f"@{name} {TYPES[name]}" + (f" = %({name})s" if name in given else "") for name in wanted]
    return f"SET NOCOUNT ON; {'DECLARE ' + ', '.join(values) + ';' if values else ''}\n{statement};"


class SqlServerStore:
    """A store on a connection."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._connection = _connect(database)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def another(self) -> Iterator[Store]:
        store = SqlServerStore(self._database)
        try:
            yield store
        finally:
            store.close()

    def transaction(self) -> AbstractContextManager[Any]:
        return self._block()

    @contextmanager
    def _block(self) -> Iterator[None]:
        self._connection.autocommit(False)
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            self._connection.autocommit(True)

    def install(self) -> None:
        for batch in batches(sqlserver_script()):
            self.run(batch)

    def declare(self, name: str, *, by_access: bool = False) -> None:
        self._do("declare", name=name, by_access=int(by_access))

    def put(
        self,
        resource: str,
        identity: Mapping[str, Any],
        references: Mapping[str, int] | None = None,
        in_identity: Collection[str] = (),
    ) -> int:
        references = references or {}
        whole = {**identity, **{name: self.identity(references[name]) for name in in_identity}}
        ((made,),) = self._do("put", name=resource, identity=spelled(whole))
        self._refer(made, {name: child for name, child in references.items() if name not in in_identity})
        self._refer(made, {name: references[name] for name in in_identity}, in_identity=True)
        return int(made)

    def change(self, document: int, body: Mapping[str, Any]) -> None:
        self._do("change", document=document, body=spelled(body))

    def rename(self, document: int, identity: Mapping[str, Any]) -> None:
        self._do("rename", document=document, identity=spelled(identity))

    def refer(self, document: int, references: Mapping[str, int]) -> None:
        self._do("unrefer", document=document)
        self._refer(document, references)

    def _refer(self, document: int, references: Mapping[str, int], *, in_identity: bool = False) -> None:
        if references:
            self._do("refer", document=document, edges=json.dumps(references), in_identity=int(in_identity))

    def delete(self, document: int) -> None:
        self._do("delete", document=document)

    def grant(self, document: int, subject: str) -> None:
        self._do("grant", document=document, subject=subject)

    def revoke(self, document: int, subject: str) -> None:
        self._do("revoke", document=document, subject=subject)

    def next_stamp(self, version: int) -> None:
        self.run(f"ALTER SEQUENCE forge_versions.change_version RESTART WITH {version:d}")

    def newest(self) -> int:
        ((version,),) = self._do("newest")
        return int(version)

    def pages(
        self,
        kind: Kind,
        resource: str,
        window: tuple[int, int],
        limit: int,
        *,
        strategy: Strategy = "journal",
        subject: str | None = None,
    ) -> Iterator[list[Found]]:
        if strategy != self.strategy():
            self.use_strategy(strategy, 100)
        name = QUERIES[strategy] if kind == "changes" and subject is None else kind
        for page in self._pages(name, resource, window, limit, subject):
            yield [(int(version), int(document)) for version, document, *_ in page]

    def stream(
        self, resource: str, window: tuple[int, int], limit: int, *, subject: str | None = None
    ) -> Iterator[list[Item]]:
        for page in self._pages("stream", resource, window, limit, subject):
            yield [(int(version), int(document), int(kind)) for version, document, kind, *_ in page]

    def everything(self, resource: str, upto: int, limit: int, *, subject: str | None = None) -> Iterator[list[Found]]:
        for page in self._pages("everything", resource, (None, upto), limit, subject):
            yield [(int(version), int(document)) for version, document, *_ in page]

    def _pages(
        self, name: str, resource: str, window: tuple[int | None, int], limit: int, subject: str | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """As the head of queries.sql says: after each page it is asked whether that is whole."""
        ((number,),) = self._do("resource", name=resource)
        query = _query(name + ("_of_subject" if subject else ""))
        asked = {"resource": number, "min": window[0], "max": window[1], "limit": limit, "subject": subject}
        after: tuple[int, ...] = (0, 0, 0)
        _, *before = self._standing(number)
        while True:
            given = {**asked, **dict(zip(("after_version", "after_document", "after_kind"), after, strict=True))}
            page = self.run(declared(query, given), given)
            oldest, *now = self._standing(number)
            if now != before:
                before = now
                continue
            if window[0] is not None and window[0] < oldest:
                raise WindowExpired("the window begins below the oldest", fix="read it again", oldest=oldest)
            yield page
            if len(page) < limit:
                return
            version, document, kind = page[-1][:3]
            after = int(version), int(document), int(kind) if name == "stream" else 0

    def _standing(self, resource: int) -> tuple[Any, ...]:
        given = {"resource": resource}
        (found,) = self.run(declared(_query("standing"), given), given)
        return found

    def strategy(self) -> Strategy:
        ((found,),) = self._do("strategy")
        return cast(Strategy, found)

    def use_strategy(self, name: Strategy, batch: int) -> None:
        self._do("use_strategy", strategy=name, batch=batch)

    def retain(self, oldest: int) -> None:
        self._do("retain", oldest=oldest)

    def identity(self, document: int) -> Any:
        ((found,),) = self._do("identity", document=document)
        return json.loads(found)

    def identities(self, document: int) -> dict[str, Any]:
        given = {"documents": json.dumps([document])}
        found = self.run(declared(_query("references"), given), given)
        return {name: json.loads(identity) for _, name, _, _, identity, _ in found}

    def rows(self) -> Rows:
        return Rows(
            {id: (name, content, identity) for id, name, content, identity in self._do("documents")},
            [(parent, child) for parent, child in self._do("edges")],
            {(subject, document): version for subject, document, version in self._do("access")},
        )

    def _do(self, statement: str, /, **given: Any) -> list[tuple[Any, ...]]:
        return self.run(declared(STATEMENTS[statement], given), given)

    def run(self, statement: str, given: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement, if it has any."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, given or None)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def sqlserver_store() -> Iterator[SqlServerStore]:
    """A store in a database of its own, which is dropped afterwards."""
    database = f"forge_test_{uuid.uuid4().hex[:12]}"
    admin = _connect("master")
    try:
        with admin.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {database}")
        store = SqlServerStore(database)
        try:
            store.install()
            yield store
        finally:
            store.close()
            with admin.cursor() as cursor:
                cursor.execute(f"ALTER DATABASE {database} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
                cursor.execute(f"DROP DATABASE {database}")
    finally:
        admin.close()


def _query(name: str) -> str:
    return queries("forge.versions", "sql/sqlserver/queries.sql")[name]


def _connect(database: str) -> Any:
    assert URL is not None
    parts = urlsplit(URL)
    return importlib.import_module("pymssql").connect(
        server=parts.hostname,
        port=str(parts.port or 1433),
        user=unquote(parts.username or "sa"),
        password=unquote(parts.password or ""),
        database=database,
        autocommit=True,
    )
