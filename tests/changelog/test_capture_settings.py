"""What a session sets changes nothing of what is logged, shown or decided.

The same script of writes and DDL runs in a session as it comes and in one with hostile settings. The two logs have to
be the same byte for byte, with their ids and ranks; only the clock's time may differ. All settings are made at once; on
a difference each is made alone, to name those that cause it.
"""

from collections.abc import Collection
from typing import Any, Final

import psycopg
import pytest

from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing import fresh_database
from tests.changelog.log import enable
from tests.conftest import TEMPLATE

pytestmark = [pytest.mark.every_version, pytest.mark.contract("X22")]

SETTINGS: Final = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "array_nulls": "off",
    "backslash_quote": "on",
    "bytea_output": "escape",
    "check_function_bodies": "off",
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "default_text_search_config": "pg_catalog.german",
    "default_toast_compression": "pglz",
    "default_transaction_deferrable": "on",
    "escape_string_warning": "off",
    "extra_float_digits": "-15",
    "jit": "on",
    "lc_monetary": "POSIX",
    "lc_numeric": "POSIX",
    "lc_time": "POSIX",
    "lock_timeout": "1h",
    "plan_cache_mode": "force_generic_plan",
    "plpgsql.extra_errors": "all",
    "plpgsql.variable_conflict": "use_column",
    "quote_all_identifiers": "on",
    "role": "*",
    "row_security": "off",
    "search_path": "hostile, pg_catalog",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
    "timezone_abbreviations": "Australia",
    "transform_null_equals": "on",
    "work_mem": "64kB",
}

# Names that a hostile search_path finds before PostgreSQL's own.
HOSTILE: Final = """
CREATE SCHEMA hostile;
CREATE DOMAIN hostile.text AS pg_catalog.int4;
CREATE FUNCTION hostile.wrong(pg_catalog.text, pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql
    AS 'SELECT pg_catalog.repeat(''wrong'', 2)';
CREATE OPERATOR hostile.|| (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function = hostile.wrong);
CREATE FUNCTION hostile.never(xid8, xid8) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE OPERATOR hostile.>= (leftarg = xid8, rightarg = xid8, function = hostile.never);
CREATE OPERATOR hostile.<= (leftarg = xid8, rightarg = xid8, function = hostile.never);
CREATE FUNCTION hostile.never(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE OPERATOR hostile.>= (leftarg = bigint, rightarg = bigint, function = hostile.never);
CREATE FUNCTION hostile.nothing(numeric, numeric) RETURNS numeric LANGUAGE sql AS 'SELECT 0::numeric';
CREATE OPERATOR hostile.* (leftarg = numeric, rightarg = numeric, function = hostile.nothing);
"""

SETUP: Final = """
CREATE SCHEMA "Odd Place";
CREATE TYPE public.mood AS ENUM ('sad', 'glad');
CREATE TYPE "Odd Place"."Pair" AS (at timestamptz, what regclass);
CREATE DOMAIN public.moment AS timestamptz;
CREATE DOMAIN public.tables AS regclass[];
CREATE TABLE "Odd Place".thing (id int PRIMARY KEY, "Word" text, mood public.mood);
CREATE TABLE public.kinds (
    id int, at timestamptz, day date, share float8, span interval, raw bytea, what regclass, stamp timestamp,
    clock time, zoned timetz, small float4, exact numeric, price money, doc json, docb jsonb,
    type regtype, proc regproc, signature regprocedure, oper regoper, config regconfig, space regnamespace,
    period tstzrange, days daterange, periods tstzmultirange, ats timestamptz[], dates date[], shares float8[],
    raws bytea[], spans interval[], whats regclass[], types regtype[], pair "Odd Place"."Pair",
    pairs "Odd Place"."Pair"[], moment public.moment, tables public.tables, mood public.mood, spot point,
    words tsvector, bits bit(4), host inet, names text[], prices money[],
    late int GENERATED ALWAYS AS (CASE WHEN at > '2026-01-01 00:00:00+00' AND day > '2026-01-31' AND share > 0.1::float8
        AND span > '1 day 02:00' AND raw <> E'\\\\x00ff' AND what <> 0 THEN 1 ELSE 2 END) STORED,
    PRIMARY KEY (id, at, day, share, span, raw, what));
CREATE TABLE public.bare (at timestamptz, what regclass, kept text, secret text, card text);
CREATE TABLE public.parted (d int, id int, v float8, at timestamptz, what regclass, PRIMARY KEY (d, id, at))
    PARTITION BY RANGE (d);
CREATE TABLE public.parted_1 PARTITION OF public.parted FOR VALUES FROM (1) TO (2);
CREATE TABLE public.parted_2 PARTITION OF public.parted FOR VALUES FROM (2) TO (3);
CREATE TABLE public.noisy (id int PRIMARY KEY, at timestamptz, n int);
CREATE FUNCTION public.echo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE public.noisy t SET n = t.n + 1 WHERE t.id = NEW.id AND t.n < 2; RETURN NULL; END $$;
CREATE TRIGGER echo AFTER INSERT ON public.noisy FOR EACH ROW EXECUTE FUNCTION public.echo();
CREATE TABLE public.parent (id int PRIMARY KEY);
CREATE TABLE public.child (id int PRIMARY KEY, at timestamptz DEFAULT '2026-02-03 04:05:06+00',
    one int REFERENCES public.parent ON DELETE CASCADE, two int REFERENCES public.parent ON DELETE SET NULL);
"""

ENABLED: Final[dict[str, dict[str, Any]]] = {
    '"Odd Place".thing': {},
    "public.kinds": {"replica": True},
    "public.bare": {"exclude": ["secret"], "mask": ["card"], "on_failure": "invalidate"},
    "public.parted": {},
    "public.noisy": {},
    "public.child": {},
}

VALUES: Final = """(
    {id}, '2026-07-01 12:00:00+00', '2026-03-04', 0.1::float8 + 0.2::float8, interval '1 year 2 mons 3 days 04:05:06.7',
    pg_catalog.decode('00ff5c27', 'hex'), 'public.kinds'::regclass, '2026-03-04 05:06:07.08', '05:06:07', '05:06:07+00',
    0.1, 1.50, pg_catalog.numeric '12.34'::money, '{{"a" :1}}', '{{"b":  1.0}}', 'public.mood'::regtype,
    'pg_catalog.now'::regproc, 'pg_catalog.abs(int4)'::regprocedure, 'pg_catalog.!!'::regoper,
    'pg_catalog.english'::regconfig, '"Odd Place"'::regnamespace,
    '[2026-01-01 00:00:00+00,2026-02-01 00:00:00+00)', '[2026-01-05,2026-02-06)',
    '{{[2026-01-01 00:00:00+00,2026-02-01 00:00:00+00)}}', ARRAY['2026-01-01 00:00:00+00'::timestamptz, NULL],
    ARRAY['2026-01-05'::date], ARRAY[0.1::float8 + 0.2::float8], ARRAY[pg_catalog.decode('00ff', 'hex')],
    ARRAY[interval '1 year 2 days'], ARRAY['"Odd Place".thing'::regclass], ARRAY['public.mood'::regtype],
    ROW('2026-01-01 00:00:00+00', '"Odd Place".thing')::"Odd Place"."Pair",
    ARRAY[ROW('2026-01-01 00:00:00+00', 'public.kinds')::"Odd Place"."Pair"], '2026-05-06 07:08:09+00',
    ARRAY['public.kinds'::regclass], 'glad', '(0.1,0.2)', pg_catalog.to_tsvector('pg_catalog.simple', 'a b'), B'0101',
    '10.0.0.1', ARRAY['it''s', NULL, 'a"b'], ARRAY[pg_catalog.numeric '5'::money])"""

SCRIPT: Final = [
    f"INSERT INTO public.kinds VALUES {VALUES.format(id=1)}",
    f"INSERT INTO public.kinds VALUES {VALUES.format(id=2)}, {VALUES.format(id=3)}",
    "UPDATE public.kinds SET ats = ats || ats, whats = NULL, share = share WHERE id = 1",
    "UPDATE public.kinds SET pair = NULL, small = 0.3, price = NULL",
    "UPDATE public.kinds SET at = at + interval '1 hour', share = share / 3",
    "DELETE FROM public.kinds WHERE id = 1",
    "INSERT INTO public.bare VALUES ('2026-01-01 00:00:00+00', 'public.kinds', pg_catalog.chr(233), 's', 'c')",
    "INSERT INTO public.bare VALUES (NULL), (NULL)",
    "UPDATE public.bare SET secret = 't', card = 'd', kept = 'k'",
    "DELETE FROM public.bare",
    "INSERT INTO public.parted VALUES (1, 1, 0.1, '2026-01-01 00:00:00+00', 'public.parted_1')",
    "INSERT INTO public.parted VALUES (2, 1, 0.2, '2026-01-02 00:00:00+00'), (2, 3, 0.3, '2026-01-02 00:00:00+00')",
    "MERGE INTO public.parted t USING (VALUES (1, 2, 6), (1, 1, 5), (2, 1, 7)) s (d, id, v)"
    " ON t.d = s.d AND t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v"
    " WHEN NOT MATCHED THEN INSERT VALUES (s.d, s.id, s.v, '2026-01-03 00:00:00+00', 'public.parted')",
    "DO $$ BEGIN INSERT INTO public.parted VALUES (1, 8, 1, '2026-01-01 00:00:00+00');"
    " UPDATE public.parted SET id = 9 WHERE id = 8; END $$",
    "UPDATE public.parted SET d = 2 WHERE id = 2",
    "MERGE INTO public.parted t USING (VALUES (2, 2, 6)) s (d, id, v)"
    " ON t.d = s.d AND t.id = s.id WHEN MATCHED THEN UPDATE SET d = 1",
    "TRUNCATE public.parted_2",
    "TRUNCATE public.parted",
    "INSERT INTO public.noisy VALUES (1, '2026-01-01 00:00:00+00', 1), (2, '2026-01-02 00:00:00+00', 2)",
    "INSERT INTO public.parent VALUES (1), (2)",
    "INSERT INTO public.child (id, one, two) VALUES (1, 1, 2), (2, 2, 1), (3, 1, 1)",
    "DELETE FROM public.parent",
    "INSERT INTO \"Odd Place\".thing VALUES (1, 'w', 'sad')",
    "ALTER TABLE \"Odd Place\".thing ADD seen timestamptz DEFAULT '2026-01-01 00:00:00+00'",
    'ALTER TABLE "Odd Place".thing RENAME "Word" TO "New Word"',
    "ALTER TABLE \"Odd Place\".thing ADD early boolean GENERATED ALWAYS AS (seen < '2025-12-31 20:00:00+00'"
    " AND \"New Word\" <> E'\\\\') STORED",
    "ALTER TYPE public.mood ADD VALUE 'mad'",
    "ALTER TABLE public.bare ALTER kept TYPE varchar(9)",
    "CREATE TABLE public.parted_3 PARTITION OF public.parted FOR VALUES FROM (3) TO (4)",
    "ALTER TABLE public.parted DETACH PARTITION public.parted_2",
    "SELECT forge.refresh_all()",
    "UPDATE \"Odd Place\".thing SET \"New Word\" = 'x', mood = 'mad'",
    "SELECT public.forge_enable_reactivity('public.parent')",
    "SELECT public.forge_enable_reactivity('public.bare', mask => ARRAY['kept'])",
    "INSERT INTO public.parent VALUES (1), (2)",
    "TRUNCATE public.parent CASCADE",
    "SELECT public.forge_disable_reactivity('public.noisy')",
    "SELECT forge.refresh_all()",
    "SELECT forge.seal_page(1000)",
]

LOGGED: Final = """
SELECT l.id, l.rank, l.version, l.op::text, l.row_id, l.before::text, l.after::text, l.hidden, l.user_id,
       l.context::text, l.db_user, l.application_name, l.day IN ('infinity', (l.at AT TIME ZONE 'UTC')::date)
FROM forge.forge_event_log l ORDER BY coalesce(l.rank, l.id), l.id"""
VERSIONS: Final = """
SELECT v.id, v.tracked_table, v.schema_name, v.table_name,
       pg_catalog.regexp_replace(v.columns::text, '[0-9]{5,}', 'oid', 'g'), v.key_columns, v.empty
FROM forge.table_version v ORDER BY v.id"""
FINGERPRINTS: Final = """
SELECT r.id, forge.fingerprint(r.table_oid) FROM forge.tracked_relation r ORDER BY r.id"""
SHOWN: Final = """
SELECT e.id, e.table_name, e.operation, e.row_id, e.old_data::pg_catalog.text, e.new_data::pg_catalog.text,
       e.changed_columns, e.context::pg_catalog.text
FROM public.forge_events e ORDER BY e.id"""
SEALED: Final = "SELECT s.id, s.head = forge.seal_head(s) FROM forge.log_seal s ORDER BY s.id"
LEAVES: Final = """
SELECT l.id, d.paths, d.leaves FROM forge.forge_event_log l CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(v.path ORDER BY v.n) AS paths, pg_catalog.array_agg(v.value ORDER BY v.n) AS leaves
    FROM forge.event_leaves(l, l.hidden) v) d ORDER BY l.id"""
TRIMMED: Final = "SELECT forge.trimmed_since('3', '{}', 1), forge.trimmed_since('900', ARRAY['5'::xid8], 1)"


def run(database: str, names: Collection[str]) -> dict[str, Any]:
    """Run the script with these settings; returns the log and what the session is shown."""
    with connect(database) as connection:
        connection.execute(HOSTILE + SETUP)
        for table, options in ENABLED.items():
            enable(connection, table, **options)
        connection.execute("SELECT forge.start_sealing(true)")
        connection.execute(
            "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
            " VALUES ('x', 'y', 1, 9, '9')"
        )
        role = f"other_{connection.info.dbname}"
        if "role" in names:
            connection.execute(f"CREATE ROLE {role} SUPERUSER")
        try:
            for name in names:
                value = role if name == "role" else SETTINGS[name]
                connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
            for statement in SCRIPT:
                connection.execute(statement.encode())
            shown = {
                query: connection.execute(query).fetchall() for query in (SHOWN, SEALED, LEAVES, FINGERPRINTS, TRIMMED)
            }
            for name in names:
                connection.execute(f"RESET {name if '.' in name else chr(34) + name + chr(34)}")
            again = connection.execute("SELECT forge.refresh_all()").fetchall()
            assert again == [(0,)], "another session finds definitions that changed"
            for query, rows in shown.items():
                assert connection.execute(query).fetchall() == rows, query
            return {"log": connection.execute(LOGGED).fetchall(), "versions": connection.execute(VERSIONS).fetchall()}
        finally:
            if "role" in names:
                connection.execute(
                    f"RESET ROLE; REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}"
                )


@pytest.fixture(scope="module")
def references() -> dict[str, dict[str, Any]]:
    """What a session without settings logs, by server."""
    return {}


@pytest.fixture
def reference(server: PostgresServer, references: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if server.url() not in references:
        with fresh_database(server, template=TEMPLATE) as database:
            references[server.url()] = run(database, ())
    return references[server.url()]


def compare(server: PostgresServer, names: Collection[str], reference: dict[str, Any]) -> None:
    """Run the script with these settings in a new database: versions and log are those without settings."""
    with fresh_database(server, template=TEMPLATE) as database:
        found = run(database, names)
    assert found["versions"] == reference["versions"]
    assert found["log"] == reference["log"]
    assert [row[3] for row in found["log"]].count("X") == 1


def test_settings_change_nothing(server: PostgresServer, reference: dict[str, Any]) -> None:
    try:
        compare(server, SETTINGS, reference)
    except (AssertionError, psycopg.Error) as error:
        pytest.fail(f"with all settings: {error}\n{alone(server, reference)}")


def alone(server: PostgresServer, reference: dict[str, Any]) -> str:
    """Describe the difference that each setting causes on its own."""
    differences = []
    for name in SETTINGS:
        try:
            compare(server, [name], reference)
        except (AssertionError, psycopg.Error) as error:
            differences.append(f"with {name} alone: {error}")
    return "\n".join(differences) or "no setting does it alone"


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_nothing(server: PostgresServer, reference: dict[str, Any], name: str) -> None:
    compare(server, [name], reference)
