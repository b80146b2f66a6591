"""Read the existing rows in one transaction whose place in the binary log is known.

MariaDB reports the place of a consistent snapshot without a lock; on MySQL all tables are locked for reading for the
moment in which the transaction begins. Tables come by name, rows by key, in pages; each page has a cursor. To resume
from one, a new snapshot is taken, and what happened between the cursor's place and the new one is read from the log
first, for the rows that were delivered before; the other rows are read in the new snapshot. So nothing is missed and
nothing reported twice, and the end is one place again. A table without a key of its own has no pages to resume from: it
is reported as `invalidate` and read from its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from forge.capture.mysql import catalog
from forge.capture.mysql.address import Connection
from forge.capture.mysql.cascades import Name
from forge.capture.mysql.catalog import ask
from forge.capture.mysql.cursor import KIND, TableProgress
from forge.capture.mysql.rows import Row
from forge.capture.mysql.texts import Texts, quoted
from forge.change import Change, ChangeSource, Op, text


class MysqlSnapshot:
    """A transaction in which rows are read; blocking, for one thread at a time."""

    def __init__(self, connection: Connection, told: catalog.MysqlServer, name: str) -> None:
        self._connection = connection
        self._name = name
        self._texts: dict[Name, Texts | None] = {}
        ask(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if told.mariadb:
            ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            status = {str(key).lower(): value for key, value in ask(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
            self.file, self.offset = str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])
        else:
            ask(connection, "SET SESSION lock_wait_timeout = 10")  # waiting for this lock makes all writers wait
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
        """Return all tables, in the order in which they are read."""
        return sorted(catalog.tables(self._connection, database))

    def texts(self, name: Name) -> Texts | None:
        """Return how a table is read; None if it does not exist."""
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
        """Return rows of a table in the order of its key, starting behind `after`."""
        where = f" WHERE {texts.behind(after)}" if after else ""
        table = ".".join(map(quoted, name))
        return ask(
            self._connection,
            f"SELECT {texts.select_list} FROM {table}{where} ORDER BY {texts.order} LIMIT {size}",
        )

    def scan(self, name: Name, texts: Texts) -> Any:
        """Return a cursor over all rows of a table without a key to page by; it must be read to its end or closed."""
        from pymysql.cursors import SSCursor  # type: ignore[import-untyped]

        cursor = self._connection.cursor(SSCursor)
        cursor.execute(f"SELECT {texts.select_list} FROM {'.'.join(map(quoted, name))}")
        return cursor

    def reads(self, name: Name, texts: Texts, rows: Sequence[tuple[Any, ...]], first: int = 0) -> list[Change]:
        """Return rows as changes. The same row of the same snapshot has the same id."""
        head = f"{self._transaction}.r.{name[0]}.{name[1]}."
        where = ChangeSource(KIND, self._name, f"{self.file}:{self.offset:012d}.00000000.r")
        found = []
        for number, raw in enumerate(rows, first):
            image = texts.row(raw)
            key: Row | None = {each: image[each] for each in texts.key} or None
            mark = ",".join(text(value).replace(",", ",,") for value in key.values()) if key else str(number)
            found.append(Change(head + mark, Op.READ, *name, where, self.at, key, None, image))
        return found

    def invalidate(self, name: Name) -> Change:
        """Return the change that announces that a table is read again."""
        where = ChangeSource(KIND, self._name, f"{self.file}:{self.offset:012d}.00000000.q")
        return Change(f"{self._transaction}.r.{name[0]}.{name[1]}", Op.INVALIDATE, *name, where, self.at)

    def read_already(self, texts: Texts, progress: TableProgress, changes: Sequence[Change]) -> list[bool]:
        """Tell for each change of the table being read whether its row was delivered before."""
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
