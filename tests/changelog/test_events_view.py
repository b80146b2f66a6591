"""`forge_events`: the log as people query it."""

from datetime import datetime

import psycopg
import pytest

from forge.postgres.connection import Connection
from tests.changelog.log import enable

pytestmark = pytest.mark.every_version

RECENT = """
SELECT operation, changed_columns, user_id, timestamp
FROM forge_events
WHERE table_name = 'projects' AND row_id = '...'
ORDER BY timestamp DESC
LIMIT 10;
"""

WHO = """
SELECT
    user_id,
    table_name,
    operation,
    count(*) as changes
FROM forge_events
WHERE timestamp > CURRENT_DATE
GROUP BY user_id, table_name, operation
ORDER BY changes DESC;
"""

AS_OF = """
WITH events_before AS (
    SELECT *
    FROM forge_events
    WHERE table_name = 'projects'
      AND row_id = '...'
      AND timestamp <= '2024-01-15T10:00:00Z'
    ORDER BY timestamp DESC
    LIMIT 1
)
SELECT new_data FROM events_before;
"""


@pytest.fixture
def projects(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE projects (id text PRIMARY KEY, name text, budget numeric, secret text)")
    enable(connection, "projects", exclude=["secret"])
    for user, write in (
        ("ann", "INSERT INTO projects VALUES ('p1', 'moon', 10, 's')"),
        ("bob", "UPDATE projects SET name = 'mars', secret = 't' WHERE id = 'p1'"),
        ("bob", "UPDATE projects SET budget = 20"),
    ):
        with connection.transaction():
            connection.execute("SELECT forge_context(user_id => %s, function_name => 'edit', trace_id => 't')", (user,))
            connection.execute(write)
    return connection


def now(connection: Connection) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    assert isinstance(row[0], datetime)
    return row[0]


@pytest.mark.contract("T8")
def test_recent_changes_of_a_record(projects: Connection) -> None:
    found = projects.execute(RECENT.replace("...", "p1")).fetchall()
    assert [row[:3] for row in found] == [
        ("UPDATE", ["budget"], "bob"),
        ("UPDATE", ["name", "secret"], "bob"),
        ("INSERT", None, "ann"),
    ]
    assert found[0][3] > found[1][3] > found[2][3]


@pytest.mark.contract("T8")
def test_who_changed_what_today(projects: Connection) -> None:
    found = projects.execute(WHO).fetchall()
    assert found[0] == ("bob", "projects", "UPDATE", 2)
    assert sorted(found[1:], key=str) == [("ann", "projects", "INSERT", 1), (None, "projects", "SCHEMA", 1)]


@pytest.mark.contract("T8")
def test_row_at_a_point_in_time(projects: Connection) -> None:
    def at(instant: datetime) -> object:
        query = AS_OF.replace("...", "p1").replace("2024-01-15T10:00:00Z", instant.isoformat())
        row = projects.execute(query).fetchone()
        return row and row[0]

    instants = [now(projects)]
    for write in (
        "DELETE FROM projects",
        "INSERT INTO projects VALUES ('p1', 'venus', 1)",
        "UPDATE projects SET id = 'p2'",
    ):
        projects.execute(write)
        instants.append(now(projects))
    mars, venus = {"id": "p1", "name": "mars", "budget": 20}, {"id": "p1", "name": "venus", "budget": 1}
    assert [at(instant) for instant in instants] == [mars, None, venus, None]
    assert at(datetime.fromisoformat("2020-01-01T00:00:00+00:00")) is None


@pytest.mark.contract("T8")
def test_row_at_a_point_in_time_after_keys_moved_and_triggers_wrote(connection: Connection) -> None:
    connection.execute("CREATE TABLE projects (id int PRIMARY KEY DEFERRABLE, v int)")
    enable(connection, "projects")
    connection.execute("INSERT INTO projects VALUES (1, 10), (2, 20)")
    connection.execute("UPDATE projects SET id = id + 1")
    connection.execute(
        "CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE projects SET v = v + 1 WHERE id = NEW.id; RETURN NULL; END $$;"
        "CREATE TRIGGER bump AFTER INSERT ON projects FOR EACH ROW EXECUTE FUNCTION bump()"
    )
    connection.execute("INSERT INTO projects VALUES (9, 90)")
    later = now(connection).isoformat()
    found = {}
    for key in ("1", "2", "3", "9"):
        row = connection.execute(AS_OF.replace("...", key).replace("2024-01-15T10:00:00Z", later)).fetchone()
        found[key] = row and row[0]
    assert found == {"1": None, "2": {"id": 2, "v": 10}, "3": {"id": 3, "v": 20}, "9": {"id": 9, "v": 91}}


@pytest.mark.contract("T3", "T8")
def test_every_column(projects: Connection) -> None:
    row = projects.execute(
        'SELECT schema_name, operation, row_id, old_data, new_data, function_name, trace_id, context, "session_user",'
        " application_name, pg_typeof(transaction_id)::text FROM forge_events ORDER BY id DESC LIMIT 1"
    ).fetchone()
    old = {"id": "p1", "name": "mars", "budget": 10}
    assert row == (
        *("public", "UPDATE", "p1", old, {**old, "budget": 20}, "edit", "t", None, "postgres", "forge", "bigint"),
    )


def test_old_data_of_a_bulk_update_is_the_whole_row(projects: Connection) -> None:
    projects.execute("INSERT INTO projects VALUES ('p2', 'x', 1)")
    projects.execute("UPDATE projects SET name = upper(name)")
    rows = projects.execute(
        "SELECT old_data, new_data, changed_columns FROM forge_events WHERE operation = 'UPDATE'"
        " ORDER BY id DESC LIMIT 2"
    ).fetchall()
    assert sorted(rows, key=str) == [
        ({"id": "p1", "name": "mars", "budget": 20}, {"id": "p1", "name": "MARS", "budget": 20}, ["name"]),
        ({"id": "p2", "name": "x", "budget": 1}, {"id": "p2", "name": "X", "budget": 1}, ["name"]),
    ]


def test_truncate_and_whole_table_events(projects: Connection) -> None:
    projects.execute("TRUNCATE projects")
    projects.execute("SELECT forge_disable_reactivity('projects')")
    found = projects.execute("SELECT operation, row_id, new_data FROM forge_events ORDER BY id DESC LIMIT 2").fetchall()
    assert found == [("SCHEMA", None, None), ("TRUNCATE", None, None)]


def test_grants_start_closed(projects: Connection) -> None:
    role = f"reader_{projects.info.dbname}"
    projects.execute(f"CREATE ROLE {role}")
    try:
        projects.execute(f"SET ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            projects.execute("SELECT * FROM forge_events")
        projects.execute("RESET ROLE")
        projects.execute(f"GRANT SELECT ON forge_events TO {role}")
        projects.execute(f"SET ROLE {role}")
        assert projects.execute("SELECT count(*) FROM forge_events").fetchone() == (4,)
    finally:
        projects.execute("RESET ROLE")
        projects.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
