"""Check the server: a supported version, a primary, durable commits, and no timeouts for listeners."""

from collections.abc import Iterator

from forge.changelog.install import MINIMUM_SERVER
from forge.doctor.finding import Case, Finding, info, ok, problem, setting, value, warning


def version(case: Case) -> Iterator[Finding]:
    """Check that the server's version supports the log."""
    number = case.connection.info.server_version
    name = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number < MINIMUM_SERVER:
        yield problem("version", f"{name} is too old for the log", "use PostgreSQL 14 or newer")
    else:
        yield ok("version", f"{name}, database {case.connection.info.dbname}")


def standby(case: Case) -> Iterator[Finding]:
    """Check that the server is a primary: a standby's snapshots miss running writers, so it cannot read the log."""
    if value(case, "SELECT pg_is_in_recovery()"):
        yield problem(
            "standby",
            "this server is a standby: its snapshots miss writers in flight, so the log cannot be read here",
            "connect to the primary, for example with target_session_attrs=read-write in the URL",
        )


def durability(case: Case) -> Iterator[Finding]:
    """Check that a commit survives a crash."""
    for name in ("fsync", "full_page_writes"):
        if setting(case, name) == "off":
            yield problem(
                "durability",
                f"{name} is off: after a power cut the database and its log may be corrupt",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
            )
    if setting(case, "synchronous_commit") == "off":
        yield warning(
            "durability",
            "synchronous_commit is off: a crash may take back the last commits; durable readers flush the WAL"
            " themselves before they hand a change on",
            "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()",
        )


def wal_level(case: Case) -> Iterator[Finding]:
    """Check wal_level: the log needs none, a feed from the WAL needs logical."""
    found = setting(case, "wal_level")
    if found != "logical":
        yield info("wal_level", f"wal_level is {found}: enough for the log; reading from the WAL needs logical")
    else:
        yield ok("wal_level", "wal_level is logical")


def timeouts(case: Case) -> Iterator[Finding]:
    """Report settings that end a listening session, or a long read."""
    effects = {
        "idle_session_timeout": "a session of your own that only LISTENs is cut off",
        "transaction_timeout": "a long read or write of the log is cut off",
        "statement_timeout": "maintenance and long statements are cut off",
    }
    role = case.connection.info.user
    for name, effect in effects.items():
        found = setting(case, name)
        if found not in (None, "0"):
            yield warning(
                "timeouts",
                f"{name} is {found} ms: {effect} (Forge's readers unset what they may)",
                f'ALTER ROLE "{role}" SET {name} = 0',
            )


def connections(case: Case) -> Iterator[Finding]:
    """Check that there are enough connections for readers, their listeners and maintenance."""
    most = int(setting(case, "max_connections") or 0)
    reserved = int(setting(case, "superuser_reserved_connections") or 0)
    used = int(str(value(case, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")))
    room = most - reserved
    if used > room * 0.85:
        yield warning(
            "connections",
            f"{used} of {room} connections are in use; a reader needs up to three of its own",
            "raise max_connections, or put the application behind a pooler",
        )
    else:
        yield ok("connections", f"{used} of {room} connections in use")


def notification_queue(case: Case) -> Iterator[Finding]:
    """Check the queue: when it is full, every NOTIFY fails, and with it the writes that send one."""
    usage = float(str(value(case, "SELECT pg_notification_queue_usage()")))
    if usage > 0.1:
        say = problem if usage > 0.5 else warning
        yield say(
            "notification_queue",
            f"the NOTIFY queue is {usage:.0%} full; when it is full, commits that notify fail",
            "end the oldest transaction of a listening session: SELECT pid, xact_start FROM pg_stat_activity"
            " ORDER BY xact_start",
        )


def two_phase(case: Case) -> Iterator[Finding]:
    """Check for two-phase commit: a transaction with NOTIFY cannot be PREPAREd."""
    if setting(case, "max_prepared_transactions") == "0":
        return
    here = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    if value(case, here):
        yield warning(
            "two_phase",
            "two-phase commit is in use: PREPARE TRANSACTION fails after a write that had to NOTIFY",
            "in a transaction that will be prepared: SET LOCAL forge.wakeup = poll",
        )
    else:
        yield info(
            "two_phase",
            "two-phase commit is possible: such transactions need SET LOCAL forge.wakeup = poll",
        )
