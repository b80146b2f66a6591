"""Check Forge's objects in the database: complete, of this program's version, and on the server that created them."""

from collections.abc import Iterator

from forge.changelog import install
from forge.doctor.finding import Case, Finding, info, ok, problem, value, warning
from forge.errors import ForgeError

_OFF = {"D": "is disabled", "R": "fires in the replica role only"}
_IDENTITY = """
    SELECT i.system_identifier = s.system_identifier::text AND i.timeline = s.timeline
           AND i.database = s.here, s.others, i.recorded_at
    FROM (SELECT system_identifier, (SELECT count(*) - 1 FROM forge.log_identity) AS others,
                 (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AS here,
                 ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline
          FROM pg_control_system()) s
    LEFT JOIN (SELECT * FROM forge.log_identity ORDER BY id DESC LIMIT 1) i ON true
"""


def installation(case: Case) -> Iterator[Finding]:
    """Check that Forge is installed, complete, and of this program's version."""
    try:
        install.require_installed(case.connection)
    except ForgeError as error:
        yield problem("installation", str(error), error.fix)
        return
    if gone := install.missing_parts(case.connection):
        yield problem("installation", f"Forge is only half installed: {', '.join(gone)} missing", "forge init")
        return
    number = value(case, "SELECT max(version) FROM forge.schema_version")
    yield ok("installation", f"Forge is installed (schema version {number})")


def event_triggers(case: Case) -> Iterator[Finding]:
    """Check whether DDL is seen in its own transaction, or later by polling."""
    rows = case.connection.execute(
        "SELECT n, e.evtenabled FROM unnest(ARRAY['forge_ddl', 'forge_rewrite']) n"
        " LEFT JOIN pg_event_trigger e ON e.evtname = n"
    ).fetchall()
    absent = [name for name, enabled in rows if enabled is None]
    off = {name: _OFF[enabled] for name, enabled in rows if enabled in _OFF}
    if absent:
        yield warning(
            "event_triggers",
            f"no event trigger {', '.join(absent)}: a change of a table's definition is seen by polling,"
            " up to a minute late, and until then writes to some tables fail after a column is dropped or renamed",
            "run forge init as a superuser",
        )
    for name, how in off.items():
        yield problem(
            "event_triggers",
            f"the event trigger {name} {how}: DDL that changes rows is not seen at once",
            f"ALTER EVENT TRIGGER {name} ENABLE",
        )
    if not absent and not off:
        yield ok("event_triggers", "DDL is seen in its own transaction")


def identity(case: Case) -> Iterator[Finding]:
    """Check that this is the server, timeline and database that last used the log."""
    row = case.connection.execute(_IDENTITY).fetchone()
    if row is None or row[0] is None:
        yield problem("identity", "the log has no identity", "forge init")
    elif not row[0]:
        yield warning(
            "identity",
            "the log was restored, copied or failed over since it was last used: every cursor made before"
            " will be answered with a resync",
            "forge init records the new identity; then let each consumer read its tables again",
        )
    elif row[1]:
        yield info(
            "identity",
            f"the log moved {row[1]} times (restore or failover), last on {row[2]:%Y-%m-%d %H:%M};"
            " older cursors resync",
        )


def grants(case: Case) -> Iterator[Finding]:
    """Check who may read the log, which shows every row of every tracked table."""
    rows = case.connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class c, LATERAL aclexplode(c.relacl) a"
        " WHERE (c.relnamespace = 'forge'::regnamespace OR c.oid = to_regclass('public.forge_events'))"
        " AND a.grantee = 0 ORDER BY 1"
    ).fetchall()
    for (name,) in rows:
        yield problem(
            "grants",
            f"everyone may use {name}, which shows the rows of every tracked table",
            f"REVOKE ALL ON {name} FROM PUBLIC",
        )
