"""The rows that are there, read in one transaction that knows its place in the binary log.

MariaDB tells the place of a consistent snapshot without a lock; on MySQL all tables are locked for reading for the
moment in which the transaction begins. Tables come by name, rows by key, in pages; each page has a cursor. To go on
from one, a new snapshot is made, and what happened between the cursor's place and the new one is read from the log
first, for the rows that were handed out before; the others are read as they are now. So nothing is missed and nothing
told twice, and the end is one place again. A table without a key of its own has no pages to go on from: it is told as
`invalidate` and read from its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from forge.capture.mysql import catalog
from forge.capture.mysql.address import Connection
from forge.capture.mysql.cascades import Name
from forge.capture.mysql.catalog import ask
from forge.capture.mysql.cursor import KIND, Progress
from forge.capture.mysql.rows import Row
from forge.capture.mysql.texts import Texts, quoted
from forge.change import Change, Op, Source, text


class Snapshot:
    """A transaction in which rows are read; blocking, for one thread at a time."""

    def __init__(self, connection: Connection, told: catalog.Server, name: str) -> None:
        self._connection = connection
        self._name = name
        self._texts: dict[Name, Texts | None] = {}
        ask(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if told.mariadb:
            ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            status = {str(key).lower(): value for key, value in ask(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
            self.file, self.offset = str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])
        else:
            ask(connection, "SET SESSION lock_wait_timeout = 10")  # who waits for this lock makes all writers wait
            ask(connection, "FLUSH TABLES WITH READ LOCK")
            try:
                ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
                self.file, self.offset = catalog.end(connection, told)
            finally:
                ask(connection, "UNLOCK TABLES")
        self.gtid = catalog.gtid(connection, told, self.file, self.offset)
        self.at = datetime.fromtimestamp(int(float(ask(connection, "SELECT UNIX_TIMESTAMP()")[0][0])), UTC)
        self._transaction = f"{self.file}:{self.offset}"

    def tables(self, database: str | None) -> list[Name]:
        """All tables, in the order in which they are read."""
        return sorted(catalog.tables(self._connection, database))

    def texts(self, name: Name) -> Texts | None:
        """How a table is read; None when it is not there."""
        if name not in self._texts:
            known = catalog.known(self._connection, *name)
            prefixed = bool(
                ask(
                    self._connection,
                    "SELECT 1 FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s"
                    " AND index_name = 'PRIMARY' AND sub_part IS NOT NULL",
                    name,
                )
            )
            self._texts[name] = Texts(known, prefixed=prefixed) if known else None
        return self._texts[name]

    def page(self, name: Name, texts: Texts, after: Sequence[str] | None, size: int) -> list[tuple[Any, ...]]:
        """Rows of a table in the order of its key, those behind `after` first."""
        where = f" WHERE {texts.behind(after)}" if after else ""
        table = ".".join(map(quoted, name))
        return ask(
            self._connection,
            f"SELECT {texts.select_list} FROM {table}{where} ORDER BY {texts.order} LIMIT {size}",
        )

    def scan(self, name: Name, texts: Texts) -> Any:
        """A cursor over all rows of a table that has no key to page by; it must be read to its end or closed."""
        from pymysql.cursors import SSCursor  # type: ignore[import-untyped]

        cursor = self._connection.cursor(SSCursor)
        cursor.execute(f"SELECT {texts.select_list} FROM {'.'.join(map(quoted, name))}")
        return cursor

    def reads(self, name: Name, texts: Texts, rows: Sequence[tuple[Any, ...]], first: int = 0) -> list[Change]:
        """Rows as changes. The same row of the same snapshot has the same id."""
        head = f"{self._transaction}.r.{name[0]}.{name[1]}."
        where = Source(KIND, self._name, f"{self.file}:{self.offset:012d}.00000000.r")
        found = []
        for number, raw in enumerate(rows, first):
            image = texts.row(raw)
            key: Row | None = {each: image[each] for each in texts.key} or None
            mark = ",".join(text(value).replace(",", ",,") for value in key.values()) if key else str(number)
            found.append(Change(head + mark, Op.READ, *name, where, self.at, key, None, image))
        return found

    def invalidate(self, name: Name) -> Change:
        """That a table is read again."""
        where = Source(KIND, self._name, f"{self.file}:{self.offset:012d}.00000000.q")
        return Change(f"{self._transaction}.r.{name[0]}.{name[1]}", Op.INVALIDATE, *name, where, self.at)

    def read_already(self, texts: Texts, progress: Progress, changes: Sequence[Change]) -> list[bool]:
        """For changes of the table that is being read: whether their rows were handed out before."""
        if not progress.key:
            return [False] * len(changes)
        last = ", ".join(texts.literals(progress.key))
        found: list[bool] = []
        for at in range(0, len(changes), 200):
            tests = []
            for change in changes[at : at + 200]:
                if change.key is None:
                    tests.append("1")
                else:
                    mine = ", ".join(texts.literals(texts.marks_of(list(change.key.values()))))
                    tests.append(f"({mine}) <= ({last})")
            ((*answers,),) = ask(self._connection, f"SELECT {', '.join(tests)}")
            found += [answer is not None and int(answer) == 1 for answer in answers]
        return found

    def close(self) -> None:
        self._connection._force_close()
