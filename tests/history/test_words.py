"""What PostgreSQL cannot have as text is refused by the past with its own errors, wherever it stands in a question."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from forge.changelog.maintenance import run_once
from forge.changelog.tenancy import Tenant
from forge.errors import CursorInvalid, ForgeError, HistoryUnavailable, RedactError, RevertRefused
from forge.history.asof import as_of, row_as_of, table_as_of
from forge.history.audit import AuditFilter as Chosen
from forge.history.audit import audit, counts
from forge.history.redact import redact
from forge.history.revert import Choice, plan_revert, revert
from forge.history.timeline import timeline
from forge.postgres.connection import Connection

SINCE = datetime(2026, 1, 1, tzinfo=UTC)

Ask = Callable[[Connection, str, datetime], Any]
QUESTIONS: dict[str, tuple[Ask, type[ForgeError], str]] = {
    "as-of, a key": (lambda db, bad, at: row_as_of(db, "word", bad, at), HistoryUnavailable, "the key of word has"),
    "as-of, a key by name": (
        lambda db, bad, at: row_as_of(db, "pair", {"a": 1, "b": bad}, at),
        HistoryUnavailable,
        "the key of pair has",
    ),
    "as-of, a name of a key": (
        lambda db, bad, at: row_as_of(db, "pair", {"a": 1, bad: 1}, at),
        HistoryUnavailable,
        "the key of pair is a, b",
    ),
    "as-of, a number's key": (lambda db, bad, at: row_as_of(db, "item", bad, at), HistoryUnavailable, "the key of"),
    "as-of, a table": (lambda db, bad, at: as_of(db, [bad], at), HistoryUnavailable, "the table's name has"),
    "as-of, a condition": (
        lambda db, bad, at: table_as_of(db, "word", at, where=f"w = '{bad}'"),
        HistoryUnavailable,
        "the condition has",
    ),
    "history, a key": (lambda db, bad, at: timeline(db, "word", bad), HistoryUnavailable, "the key of word has"),
    "history, the key of a dropped table": (
        lambda db, bad, at: timeline(db, "gone", bad),
        HistoryUnavailable,
        "the key of gone has",
    ),
    "history, a table": (lambda db, bad, at: timeline(db, bad, 1), HistoryUnavailable, "the table's name has"),
    "audit, a user": (lambda db, bad, at: audit(db, Chosen(user=bad)), HistoryUnavailable, "the user has"),
    "audit, a trace": (lambda db, bad, at: audit(db, Chosen(trace=bad)), HistoryUnavailable, "the trace has"),
    "audit, a table": (lambda db, bad, at: audit(db, Chosen(table=bad)), HistoryUnavailable, "the table's name has"),
    "audit, a tenant": (
        lambda db, bad, at: audit(db, Chosen(tenant=Tenant("w", bad))),
        HistoryUnavailable,
        "the tenant has",
    ),
    "counts, a user": (lambda db, bad, at: counts(db, Chosen(user=bad), by=["op"]), HistoryUnavailable, "the user"),
    "redact, a key": (lambda db, bad, at: redact(db, "word", bad, ["n"]), HistoryUnavailable, "the key of word has"),
    "redact, a column": (lambda db, bad, at: redact(db, "word", "a", [bad]), RedactError, "the name of a column has"),
    "redact, a reason": (lambda db, bad, at: redact(db, "word", "a", ["n"], reason=bad), RedactError, "reason has"),
    "revert, a trace": (lambda db, bad, at: plan_revert(db, Choice(trace=bad)), RevertRefused, "the trace has"),
    "revert, a user": (lambda db, bad, at: revert(db, Choice(user=bad, since=SINCE)), RevertRefused, "the user has"),
    "revert, a table": (lambda db, bad, at: Choice(trace="t", tables=(bad,)), RevertRefused, "a table's name has"),
    "revert, by whom": (lambda db, bad, at: revert(db, Choice(trace="t"), by=bad), RevertRefused, "by has"),
}


def test_text_that_no_database_has(connection: Connection, database: str) -> None:
    for table in ("item (id int PRIMARY KEY)", "word (w text PRIMARY KEY, n int)", "gone (w text PRIMARY KEY)"):
        connection.execute(f"CREATE TABLE {table}".encode())
    connection.execute("CREATE TABLE pair (a int, b text, PRIMARY KEY (a, b))")
    for name in ("item", "word", "gone", "pair"):
        connection.execute("SELECT forge_enable_reactivity(%s)", (name,))
    connection.execute("INSERT INTO word VALUES ('a', 1)")
    connection.execute("DROP TABLE gone")
    run_once(database)
    at = datetime.now(UTC)
    for bad, what in (("a\0b", "a NUL character"), ("a\udcff", "half of a surrogate pair"), ("\ud800", "half of a")):
        for question, (ask, kind, message) in QUESTIONS.items():
            with pytest.raises(kind) as caught:
                ask(connection, bad, at)
            said = str(caught.value)
            assert message in said, question
            assert what in said or "is a, b" in said, question
            said.encode()  # and can be printed
    token = urlsafe_b64encode(b"8.9.a\0b").decode().rstrip("=")
    with pytest.raises(CursorInvalid):
        timeline(connection, "word", "a", before=token)
    assert [entry.op for entry in timeline(connection, "word", "a").entries][:1] == ["INSERT"]
