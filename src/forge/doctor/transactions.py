"""Check for transactions that stay open: they keep the pacemaker awake, old partitions alive, and rows invisible."""

from collections.abc import Iterator
from datetime import timedelta

from forge.doctor.finding import Case, Finding, ok, problem, warning

_OPEN = """
    SELECT pid, usename, state, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age,
           coalesce(application_name, '')
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND xact_start < clock_timestamp() - make_interval(secs => %s)
    ORDER BY xact_start
"""
_PREPARED = """
    SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
    WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => %s)
    ORDER BY prepared
"""


def long_transactions(case: Case) -> Iterator[Finding]:
    """Report sessions whose transaction has been open for longer than the threshold; idle ones are named as such."""
    rows = case.connection.execute(_OPEN, (case.patience,)).fetchall()
    for pid, user, state, age, application in rows:
        who = f"{user}{f' ({application})' if application else ''}, pid {pid}"
        kind = "idle in transaction" if (state or "").startswith("idle in") else "in one transaction"
        yield warning(
            "long_transactions",
            f"{who} has been {kind} for {timedelta(seconds=int(age))}: what it wrote is not visible yet,"
            " and old partitions cannot go",
            f"let it commit, or SELECT pg_terminate_backend({pid}); idle_in_transaction_session_timeout prevents it",
        )
    if not rows:
        yield ok("long_transactions", f"no transaction is older than {case.patience / 60:g} minutes")


def prepared_transactions(case: Case) -> Iterator[Finding]:
    """Report old prepared transactions: one that is forgotten survives restarts and holds its locks forever."""
    for gid, age in case.connection.execute(_PREPARED, (case.patience,)).fetchall():
        quoted = "'" + gid.replace("'", "''") + "'"
        yield problem(
            "prepared_transactions",
            f"the transaction {gid!r} was prepared {timedelta(seconds=int(age))} ago and never finished: it"
            " holds its locks and keeps readers polling",
            f"COMMIT PREPARED {quoted} or ROLLBACK PREPARED {quoted}",
        )
