"""Check the tracked tables: every trigger exists, as Forge created it, on every partition."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

import psycopg

from forge.doctor.finding import Case, Finding, Level, count, info, ok, problem, setting, warning

_WANTED = """
    SELECT format('%%I.%%I', k.schema_name, k.table_name), w.target::regclass::text,
           w.name, w.function, w.definition, k.replica, g.tgenabled::text, g.tgtype::int,
           p.pronamespace = 'forge'::regnamespace AND p.proname = w.function, g.tgqual IS NOT NULL,
           cardinality(g.tgattr::int2[]) > 0, coalesce(g.tgparentid <> 0, false)
    FROM forge.tracked_relation r
    JOIN forge.tracked_table k ON k.id = r.id
    CROSS JOIN LATERAL forge.wanted_triggers(r.id, r.table_oid) w
    LEFT JOIN pg_trigger g ON g.tgrelid = w.target AND g.tgname = w.name
    LEFT JOIN pg_proc p ON p.oid = g.tgfoid
    WHERE k.disabled_at IS NULL AND %s
    ORDER BY 1, 2, 3
"""
_LOST = """
    SELECT format('%I.%I', k.schema_name, k.table_name) FROM forge.tracked_table k
    WHERE k.disabled_at IS NULL AND NOT EXISTS (SELECT FROM forge.tracked_relation r WHERE r.id = k.id)
    ORDER BY 1
"""
_RELATIONS = """
    SELECT format('%I.%I', k.schema_name, k.table_name) AS name, k.replica,
           forge.key_columns(r.table_oid) = '{}' AS keyless,
           ARRAY(SELECT o::regclass::text FROM forge.relations_of(r.table_oid) o JOIN pg_class c ON c.oid = o
                 WHERE c.relpersistence = 'u') AS unlogged,
           ARRAY(SELECT s.srrelid::regclass::text FROM forge.relations_of(r.table_oid) o
                 JOIN pg_subscription_rel s ON s.srrelid = o) AS subscribed,
           ARRAY(SELECT i.inhrelid::regclass::text FROM forge.relations_of(r.table_oid) o
                 JOIN pg_inherits i ON i.inhparent = o WHERE i.inhdetachpending) AS pending,
           forge.fingerprint(r.table_oid) IS DISTINCT FROM
               (SELECT v.fingerprint FROM forge.table_version v WHERE v.tracked_table = k.id
                ORDER BY v.id DESC LIMIT 1) AS drifted
    FROM forge.tracked_relation r JOIN forge.tracked_table k ON k.id = r.id
    WHERE k.disabled_at IS NULL ORDER BY 1
"""
_FUNCTIONS = """
    SELECT r.id, r.table_oid, format('%I.%I', k.schema_name, k.table_name), v.id,
           (SELECT json_object_agg(p.proname, concat_ws(' ', p.prosrc, p.proconfig, p.prosecdef, p.prolang))
            FROM pg_proc p WHERE p.pronamespace = 'forge'::regnamespace
                             AND p.proname LIKE format('log\\_%s\\_%%', r.id))
    FROM forge.tracked_relation r JOIN forge.tracked_table k ON k.id = r.id
    CROSS JOIN LATERAL (SELECT o.id, o.fingerprint FROM forge.table_version o WHERE o.tracked_table = k.id
                        ORDER BY o.id DESC LIMIT 1) v
    WHERE k.disabled_at IS NULL AND v.fingerprint = forge.fingerprint(r.table_oid) ORDER BY 3
"""
_ROLES = """
    SELECT coalesce(r.rolname, 'every role'), coalesce(d.datname, 'every database')
    FROM pg_db_role_setting s
    LEFT JOIN pg_roles r ON r.oid = s.setrole
    LEFT JOIN pg_database d ON d.oid = s.setdatabase
    WHERE 'session_replication_role=replica' = ANY (s.setconfig)
      AND (s.setdatabase = 0 OR d.datname = current_database())
"""
_WHEN = {"O": "in ordinary sessions only", "R": "in the replica role only", "A": "always"}
_ENABLE = {"O": "ENABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}
_EVENTS = {"INSERT": 4, "DELETE": 8, "UPDATE": 16, "TRUNCATE": 32}


def trigger_type(definition: str) -> int:
    """Return the tgtype of a CREATE TRIGGER statement of Forge.

    >>> trigger_type("CREATE TRIGGER x AFTER INSERT OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION f()")
    13
    """
    found = re.search(r" (BEFORE|AFTER) ((?:[A-Z]+)(?: OR [A-Z]+)*) ON ", definition)
    if found is None:
        raise ValueError(definition)
    events = sum(_EVENTS[event] for event in found[2].split(" OR "))
    return events + ("FOR EACH ROW" in definition) + 2 * (found[1] == "BEFORE")


def firing_mode(function: str, replica: bool) -> str:
    """Return the firing mode of a trigger, as in pg_trigger.tgenabled: O for ordinary sessions, R in the replica role,
    A always.

    >>> firing_mode("log_1_insert", True), firing_mode("log_1_row", True), firing_mode("log_1_truncate", True)
    ('O', 'R', 'A')
    """
    if function.endswith("_row"):
        return "R"
    return "A" if replica and function.endswith(("_truncate", "_empty")) else "O"


def tables(case: Case) -> Iterator[Finding]:
    """Check that tables are tracked, and that their triggers still exist."""
    lost = [name for (name,) in case.connection.execute(_LOST).fetchall()]
    for name in lost:
        yield problem(
            "tables",
            f"{name} should be tracked, but its triggers are gone: changes are lost",
            f"forge enable {name}",
            name,
        )
    row = case.connection.execute("SELECT count(*) FROM forge.tracked_relation").fetchone()
    if row and row[0]:
        yield ok("tables", f"{count(row[0], 'table')} tracked")
    elif not lost:
        yield warning("tables", "no table is tracked", "forge enable TABLE, or forge enable --all")


def triggers(case: Case) -> Iterator[Finding]:
    """Check the triggers of each tracked table itself."""
    yield from _compare(case, "triggers", "w.target = r.table_oid")


def partitions(case: Case) -> Iterator[Finding]:
    """Check the triggers of each partition and inheriting child: a direct write to it must be seen."""
    yield from _compare(case, "partitions", "w.target <> r.table_oid")


def _compare(case: Case, check: str, which: str) -> Iterator[Finding]:
    missing: dict[tuple[str, str], list[str]] = {}
    wanted: Counter[tuple[str, str]] = Counter()
    wrong = 0
    rows = case.connection.execute((_WANTED % which).encode()).fetchall()
    for table, target, name, function, definition, replica, enabled, kind, ours, condition, columns, cloned in rows:
        wanted[table, target] += not cloned  # PostgreSQL clones the row triggers of a table to its partitions
        if enabled is None:
            missing.setdefault((table, target), []).append(name)
            continue
        finding = None
        altered = {
            "it calls another function": not ours,
            "it fires at other events": kind != trigger_type(definition),
            "it has a condition": condition != (" FOR EACH ROW WHEN (" in definition),
            "it fires for some columns only": columns,
        }
        if how := [words for words, so in altered.items() if so]:
            finding = problem(
                check,
                f"the trigger {name} on {target} was altered, {' and '.join(how)}: what it logs cannot be relied on",
                f'DROP TRIGGER "{name}" ON {target}, then forge enable {table}',
                table,
            )
        elif enabled == "D":
            finding = problem(
                check,
                f"the trigger {name} on {target} is disabled: changes are lost",
                f"forge enable {table}",
                table,
            )
        elif enabled != (firing := firing_mode(function, replica)) and (replica or (enabled, firing) != ("A", "O")):
            finding = problem(
                check,
                f"the trigger {name} on {target} fires {_WHEN[enabled]}, not {_WHEN[firing]}: changes are lost"
                " or doubled",
                f'ALTER TABLE {target} {_ENABLE[firing]} TRIGGER "{name}"',
                table,
            )
        if finding:
            wrong += 1
            yield finding
    for (table, target), names in missing.items():
        part = f", a part of {table}," if check == "partitions" else ""
        if part and len(names) == wanted[table, target]:
            what = f"{target}{part} is not tracked: writes straight into it are lost"
        else:
            triggers = f"trigger{'' if len(names) == 1 else 's'} {', '.join(names)}"
            what = f"{target}{part} lacks the {triggers}: changes are lost"
        yield problem(check, what, f"forge enable {table}", table)
    if rows and not wrong and not missing:
        noun = "tracked table" if check == "triggers" else "partition or child table"
        yield ok(check, f"{count(len(rows), 'trigger')} in place on {count(len(wanted), noun)}")


def functions(case: Case) -> Iterator[Finding]:
    """Check that the triggers' functions equal those that Forge would create: it creates them, and rolls back.

    A table whose definition changed unnoticed is left to `definitions`: its functions are stale, not altered.
    """
    try:
        with case.connection.transaction(force_rollback=True):
            case.connection.execute("SELECT set_config('forge.refreshing', 'yes', true)")
            before = case.connection.execute(_FUNCTIONS.encode()).fetchall()
            for tracked, relation, _, version, _ in before:
                case.connection.execute("SELECT forge.write_functions(%s, %s, %s)", (tracked, relation, version))
            after = {row[0]: row[4] for row in case.connection.execute(_FUNCTIONS.encode()).fetchall()}
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
        yield info("functions", "whether trigger functions were altered can be told only by the role that owns them")
        return
    altered = [
        (table, name)
        for tracked, _, table, _, found in before
        for name, text in sorted(found.items())
        if after[tracked][name] != text
    ]
    for table, name in altered:
        yield problem(
            "functions",
            f"the function forge.{name} of {table} was altered: what it logs cannot be relied on",
            "forge init",
            table,
        )
    if before and not altered:
        yield ok("functions", f"the functions of {count(len(before), 'table')} are as Forge writes them")


def unlogged_writes(case: Case, names: Collection[str]) -> Iterator[Finding]:
    """Report what keeps writes to these tables (`schema.table`) out of the log, as far as it is visible at present.

    Findings of the level `info` name what could not be checked.
    """
    wanted = {name.replace('"', "") for name in names}
    for check in (tables, triggers, partitions, functions, replica_role):
        for finding in check(case):
            concerned = finding.table is None or finding.table.replace('"', "") in wanted
            if finding.level in (Level.PROBLEM, Level.INFO) and concerned:
                yield finding


def keys(case: Case) -> Iterator[Finding]:
    """Report tables without a primary key: the log has whole rows, and equal rows cannot be distinguished."""
    for row in _relations(case):
        if row.keyless:
            yield warning(
                "keys",
                f"{row.name} has no primary key: its changes name no row, so whatever depends on it is redone",
                f"ALTER TABLE {row.name} ADD PRIMARY KEY (…)",
            )


def unlogged(case: Case) -> Iterator[Finding]:
    """Report unlogged tables: a crash empties them, and no trigger sees it."""
    for row in _relations(case):
        for name in row.unlogged:
            yield problem(
                "unlogged", f"{name} is unlogged: a crash empties it unseen", f"ALTER TABLE {name} SET LOGGED"
            )


def replica_role(case: Case) -> Iterator[Finding]:
    """Report writers for which ordinary triggers do not fire: the replica role, and logical replication."""
    tracked = _relations(case)
    plain = [row.name for row in tracked if not row.replica]
    if plain:
        where = [f"{role} in {database}" for role, database in case.connection.execute(_ROLES).fetchall()]
        if setting(case, "session_replication_role") == "replica" and not where:
            where = ["this role"]
        for who in where:
            yield problem(
                "replica_role",
                f"session_replication_role is replica for {who}: its writes to {', '.join(plain[:3])}"
                f"{' and others' if len(plain) > 3 else ''} are not logged",
                "ALTER ROLE … RESET session_replication_role, or forge enable TABLE --replica",
            )
    for row in tracked:
        if row.subscribed and not row.replica:
            yield problem(
                "replica_role",
                f"{row.name} receives logical replication, which fires no statement trigger: changes are lost",
                f"forge enable {row.name} --replica",
                row.name,
            )


def definitions(case: Case) -> Iterator[Finding]:
    """Check whether a table's definition changed without a log entry, and whether a partition is half detached."""
    for row in _relations(case):
        if row.drifted:
            yield warning(
                "definitions",
                f"the definition of {row.name} changed and the log does not know yet",
                "SELECT forge.refresh_all(); maintenance does it every minute",
            )
        for name in row.pending:
            yield warning(
                "definitions",
                f"{name} is half detached from {row.name}: writes into it are not logged",
                f"ALTER TABLE {row.name} DETACH PARTITION {name} FINALIZE",
            )


def failures(case: Case) -> Iterator[Finding]:
    """Report changes that could not be logged, where the write had to continue (`on_failure => 'invalidate'`)."""
    rows = case.connection.execute(
        "SELECT format('%I.%I', v.schema_name, v.table_name), count(*), max(l.at)"
        " FROM (SELECT version, op, at, context FROM forge.forge_event_log"
        " ORDER BY transaction_id DESC LIMIT 100000) l JOIN forge.table_version v ON v.id = l.version"
        " WHERE l.op = 'X' AND l.context ->> 'failure' IS NOT NULL GROUP BY 1 ORDER BY 1"
    ).fetchall()
    for name, number, last in rows:
        yield warning(
            "failures",
            f"{number} writes to {name} could not be logged, the last at {last:%Y-%m-%d %H:%M:%S}; readers"
            " were told to read the table again",
            "see why: SELECT table_name, context FROM forge_events WHERE operation = 'INVALIDATE'",
        )


def _relations(case: Case) -> list["_Tracked"]:
    return [_Tracked(*row) for row in case.connection.execute(_RELATIONS).fetchall()]


class _Tracked(NamedTuple):
    name: str
    replica: bool
    keyless: bool
    unlogged: list[str]
    subscribed: list[str]
    pending: list[str]
    drifted: bool
