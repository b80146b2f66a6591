"""pgbench's tables, tracked: what the log alone leads to is what the tables held. Its history table has no key."""

import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from forge.embedded import PostgresServer
from forge.history.asof import as_of
from forge.postgres.connection import Connection
from tests.history.moments import begin, in_order, record

TABLES = ["pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history"]
ACCOUNTS = 2000
SCRIPT = f"""
\\set aid random(1, {ACCOUNTS})
\\set bid 1
\\set tid random(1, 10)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
"""As pgbench's own, with fewer accounts."""


def bench(server: PostgresServer, *words: str) -> None:
    subprocess.run([server.bin / "pgbench", *words], check=True, capture_output=True)


@pytest.mark.contract("T9", "T11")
@pytest.mark.parametrize("amount", [("-t", "150"), pytest.param(("-T", "60"), marks=pytest.mark.long)])
def test_the_log_alone_leads_to_every_table(
    server: PostgresServer, database: str, connection: Connection, tmp_path: Path, amount: tuple[str, str]
) -> None:
    begin(connection)
    bench(server, "-i", "-q", "-I", "dtp", database)
    for table in TABLES:
        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    connection.execute(
        f"INSERT INTO pgbench_branches VALUES (1, 0);"
        f"INSERT INTO pgbench_tellers SELECT n, 1, 0 FROM generate_series(1, 10) n;"
        f"INSERT INTO pgbench_accounts SELECT n, 1, 0, '' FROM generate_series(1, {ACCOUNTS}) n".encode()
    )
    script = tmp_path / "transfer.sql"
    script.write_text(SCRIPT)
    bench(server, "-n", "-c", "4", *amount, "-f", str(script), database)
    moment = record(connection, TABLES)
    assert len(moment.copies["pgbench_history"]) >= 600
    connection.execute(f"TRUNCATE {', '.join(TABLES)}".encode())  # from here on only the log has it
    found = as_of(connection, TABLES, moment.at)
    for row in found["pgbench_history"].rows:
        row["mtime"] = datetime.fromisoformat(row["mtime"])
    for table in TABLES:
        assert in_order(found[table].rows) == in_order(moment.copies[table]), table
