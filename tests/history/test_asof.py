"""A table rewound to a recorded instant is the table as it was then, or an error says why it cannot be told."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from forge.change import UNAVAILABLE
from forge.changelog.maintenance import Maintainer, Policy
from forge.errors import HistoryUnavailable, TrackingError
from forge.history import tracked
from forge.history.asof import as_of, row_as_of, table_as_of
from forge.history.redact import redact
from forge.postgres.connection import Connection, connect

Rows = list[dict[str, Any]]
FAR = datetime(2100, 1, 1, tzinfo=UTC)


class Clock:
    """Records instants as maintenance does."""

    def __init__(self, keeper: Maintainer, connection: Connection) -> None:
        self._keeper = keeper
        self._connection = connection

    def tick(self) -> datetime:
        self._keeper.record_instant()
        row = self._connection.execute("SELECT max(at) FROM forge.instant").fetchone()
        assert row is not None
        assert isinstance(row[0], datetime)
        return row[0]


@pytest.fixture
def clock(database: str, connection: Connection) -> Iterator[Clock]:
    with Maintainer.open(database, Policy()) as keeper:
        assert keeper.elected()
        assert keeper.round().problems == []
        yield Clock(keeper, connection)


def rows_now(connection: Connection, table: str) -> Rows:
    cursor = connection.execute(f"SELECT * FROM {table}".encode())
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def in_order(rows: Rows) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def random_write(dice: random.Random, connection: Connection, keys: range) -> None:
    key, other = dice.choice(keys), dice.choice(keys)
    value, price = dice.choice(["a", "b", "c", None]), Decimal(dice.randrange(1000)) / 100
    match dice.randrange(8):
        case 0 | 1 | 2:
            connection.execute(
                "INSERT INTO item VALUES (%s, 1, %s, %s, %s)"
                " ON CONFLICT (id, part) DO UPDATE SET price = excluded.price",
                (key, value, price, [key, other]),
            )
        case 3:
            connection.execute("UPDATE item SET name = %s WHERE id = %s", (value, key))
        case 4:
            connection.execute(
                "UPDATE item SET price = price + 1 WHERE id BETWEEN %s AND %s",
                (min(keys), key),
            )
        case 5:
            connection.execute("DELETE FROM item WHERE id = %s", (key,))
        case 6:  # the key changes, where it is free
            connection.execute(
                "UPDATE item SET id = %s, part = 2 WHERE id = %s AND part = (SELECT min(part) FROM item WHERE id = %s)"
                " AND NOT EXISTS (SELECT FROM item WHERE id = %s AND part = 2)",
                (other, key, key, other),
            )
        case 7:
            connection.execute("DELETE FROM item WHERE id = %s", (key,))
            connection.execute("INSERT INTO item VALUES (%s, 1, 'again', %s, '{}')", (key, price))


@pytest.mark.contract("T9")
@pytest.mark.every_version
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_a_random_history_is_rewound_to_every_instant(
    database: str, connection: Connection, clock: Clock, seed: int
) -> None:
    dice = random.Random(seed)
    connection.execute(
        "CREATE TABLE item (id int, part int, name text, price numeric, tags int[], PRIMARY KEY (id, part))"
    )
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    copies: list[tuple[datetime, Rows]] = []
    with connect(database) as slow:
        for _ in range(12):
            # `slow` writes other rows in a transaction that spans instants and then commits or rolls back
            with slow.transaction(force_rollback=dice.random() < 0.3):
                for _ in range(3):
                    for _ in range(dice.randrange(4)):
                        with connection.transaction(force_rollback=dice.random() < 0.2):
                            random_write(dice, connection, range(10))
                            random_write(dice, connection, range(10))
                        random_write(dice, slow, range(100, 106))
                    copies.append((clock.tick(), rows_now(connection, "item")))
    assert len({at for at, _ in copies}) > 12
    for at, copy in copies:
        found = table_as_of(connection, "item", at)
        assert found.at == at
        assert in_order(found.rows) == in_order(copy)
    at, copy = dice.choice(copies)
    for key in (*range(10), *range(100, 106)):
        for part in (1, 2):
            expected = [row for row in copy if (row["id"], row["part"]) == (key, part)]
            assert row_as_of(connection, "item", {"id": key, "part": part}, at).rows == expected


@pytest.mark.contract("T9")
def test_a_table_without_a_key_is_rewound_by_counting(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE note (body text, n float8)")
    connection.execute("SELECT public.forge_enable_reactivity('note')")
    copies = []
    for statement in (
        "INSERT INTO note VALUES ('a', 1.5), ('a', 1.5), ('b', 'NaN'), (NULL, NULL)",
        "UPDATE note SET n = 2 WHERE body = 'a'",
        "DELETE FROM note WHERE ctid = (SELECT min(ctid) FROM note WHERE body = 'a')",
        "INSERT INTO note SELECT * FROM note",
    ):
        connection.execute(statement.encode())
        copies.append((clock.tick(), rows_now(connection, "note")))
    for at, copy in copies:
        assert in_order(table_as_of(connection, "note", at).rows) == in_order(copy)
    with pytest.raises(HistoryUnavailable, match="no primary key"):
        row_as_of(connection, "note", 1, FAR)


@pytest.mark.contract("T9")
def test_the_answer_is_of_the_last_instant_before(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    first = clock.tick()
    connection.execute("INSERT INTO item VALUES (1, 'x')")
    second = clock.tick()
    just_before = second - timedelta(microseconds=1)
    assert (table_as_of(connection, "item", just_before).at, row_as_of(connection, "item", 1, just_before).row) == (
        first,
        None,
    )
    gap = table_as_of(connection, "item", just_before).gap
    assert (gap.asked, gap.at, gap.changes, gap.unsure) == (just_before, first, 1, 0)
    assert str(gap).endswith("s before; 1 change lies between)")
    later = row_as_of(connection, "public.item", {"id": 1}, FAR)
    assert (later.table, later.asked, later.row) == ("public.item", FAR, {"id": 1, "name": "x"})
    assert second < later.at < FAR  # the future means now


@pytest.mark.contract("T9")
def test_now_is_answered_from_the_table_itself(connection: Connection) -> None:
    """However short a time ago the table was enabled, and without any recorded instant."""
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    connection.execute("INSERT INTO item VALUES (1, 'before')")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    enabled = server_time(connection)
    found = row_as_of(connection, "item", 1, None)
    assert (found.row, found.gap.seconds, found.gap.changes, found.gap.unsure) == ({"id": 1, "name": "before"}, 0, 0, 0)
    assert row_as_of(connection, "item", 1, enabled).row == {"id": 1, "name": "before"}
    connection.execute("UPDATE item SET name = 'after'")
    updated = server_time(connection)
    connection.execute("DELETE FROM item")
    for at, row, unsure in ((enabled, "before", 1), (updated, "after", 2), (server_time(connection), None, 3)):
        found = row_as_of(connection, "item", 1, at)
        assert (found.row and found.row["name"]) == row
        assert (found.at, found.gap.changes, found.gap.unsure) == (at, 0, unsure)
    assert table_as_of(connection, "item", None).rows == []
    with pytest.raises(HistoryUnavailable, match="first recorded instant"):
        table_as_of(connection, "item", datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.contract("T9")
def test_all_that_was_committed_before_the_instant_of_an_answer_is_in_it(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed while the definition is read, behind the snapshot of the answer, is later than its instant."""
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    load = tracked.load
    with connect(database) as writer:

        def loaded(*given: Any) -> tracked.TrackedTable:
            found = load(*given)
            writer.execute("INSERT INTO item VALUES (1)")
            return found

        monkeypatch.setattr(tracked, "load", loaded)
        found = table_as_of(connection, "item", None)
        assert (found.rows, found.gap.changes) == ([], 0)
        assert found.at < logged_at(connection)


def logged_at(connection: Connection) -> datetime:
    row = connection.execute("SELECT min(at) FROM forge.forge_event_log WHERE op = 'I'").fetchone()
    assert row is not None
    assert isinstance(row[0], datetime)
    return row[0]


@pytest.mark.contract("T9")
def test_what_may_have_been_committed_after_the_instant_is_told(
    database: str, connection: Connection, clock: Clock
) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    recorded = clock.tick()
    with connect(database) as slow:
        with slow.transaction():
            slow.execute("INSERT INTO item VALUES (1)")
            at = server_time(connection)
            assert table_as_of(connection, "item", at).rows == []
        found = table_as_of(connection, "item", at)
        assert (found.rows, found.gap.unsure) == ([{"id": 1}], 1)
        assert str(found.gap).endswith("(1 change may have been committed after)")
        assert (table_as_of(connection, "item", recorded).rows, found.gap.changes) == ([], 0)
        clock.tick()
    found = table_as_of(connection, "item", at)
    assert (found.rows, found.at, found.gap.changes, found.gap.unsure) == ([], recorded, 1, 0)


def test_an_instant_before_a_failover_is_not_answered_from_the_table_of_now(connection: Connection) -> None:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    at = server_time(connection)
    connection.execute("INSERT INTO item VALUES (1)")
    connection.execute("UPDATE forge.log_identity SET timeline = timeline + 1")  # as if it were another server
    with pytest.raises(HistoryUnavailable, match="first recorded instant"):
        table_as_of(connection, "item", at)
    assert table_as_of(connection, "item", None).rows == [{"id": 1}]


def server_time(connection: Connection) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    assert isinstance(row[0], datetime)
    return row[0]


def test_nothing_is_recorded_while_nothing_changes(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    first = clock.tick()
    assert clock.tick() == first
    connection.execute("INSERT INTO item VALUES (1)")
    assert clock.tick() > first


@pytest.mark.contract("T9")
def test_a_commit_after_the_last_write_is_recorded(database: str, connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    with connect(database) as slow:
        with slow.transaction():
            slow.execute("INSERT INTO item VALUES (1)")
            during = clock.tick()
            assert clock.tick() == during
        after = clock.tick()
    assert after > during
    assert table_as_of(connection, "item", during).rows == []
    assert table_as_of(connection, "item", after).rows == [{"id": 1}]


def test_the_order_within_one_statement_and_its_triggers_is_kept(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, n int)")
    connection.execute(
        "CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN UPDATE item SET n = n + 1 WHERE id = NEW.id AND n < 3; RETURN NULL; END'"
    )
    connection.execute("CREATE TRIGGER bump AFTER INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION bump()")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    empty = clock.tick()
    connection.execute("INSERT INTO item VALUES (1, 0), (2, 0)")
    full = clock.tick()
    connection.execute("UPDATE item SET n = -2")
    clock.tick()
    assert table_as_of(connection, "item", empty).rows == []
    assert in_order(table_as_of(connection, "item", full).rows) == in_order([{"id": 1, "n": 3}, {"id": 2, "n": 3}])
    assert row_as_of(connection, "item", 2, full).row == {"id": 2, "n": 3}


def test_values_are_as_in_the_log_whatever_the_session_says(connection: Connection, clock: Clock) -> None:
    connection.execute(
        'CREATE TABLE "Odd %% name" (forge_now int, forge_now_image text, "a%%b" numeric, day date, made timestamptz,'
        " raw bytea, ratio float8, wait interval, secret text, card text, PRIMARY KEY (forge_now, made))"
    )
    connection.execute("SELECT public.forge_enable_reactivity('Odd %% name', exclude => '{secret}', mask => '{card}')")
    connection.execute(
        'INSERT INTO "Odd %% name" VALUES'
        " (1, 'i', 1.10, '2026-02-01', '2026-02-01 12:00+02', '\\xdead', 0.1::float8 + 0.2, '1 day', 's', 'c'),"
        " (2, 'i', 'Infinity', 'infinity', 'infinity', '', '-Infinity', '-2 months', 's', NULL)"
    )
    at = clock.tick()
    connection.execute('UPDATE "Odd %% name" SET forge_now_image = NULL WHERE forge_now = 1')
    clock.tick()
    connection.execute("SET DateStyle = 'German, DMY'; SET TimeZone = 'Asia/Tokyo'; SET extra_float_digits = -3")
    connection.execute("SET bytea_output = 'escape'; SET IntervalStyle = 'postgres_verbose'")
    rows = table_as_of(connection, "Odd %% name", at).rows
    assert sorted(rows, key=lambda row: int(row["forge_now"])) == [
        {
            "forge_now": 1,
            "forge_now_image": "i",
            "a%%b": Decimal("1.10"),
            "day": "2026-02-01",
            "made": "2026-02-01T10:00:00+00:00",
            "raw": b"\xde\xad",
            "ratio": 0.30000000000000004,
            "wait": "P1D",
            "secret": UNAVAILABLE,
            "card": "***",
        },
        {
            "forge_now": 2,
            "forge_now_image": "i",
            "a%%b": Decimal("Infinity"),
            "day": "infinity",
            "made": "infinity",
            "raw": b"",
            "ratio": float("-inf"),
            "wait": "P-2M",
            "secret": UNAVAILABLE,
            "card": None,
        },
    ]
    for key in ({"forge_now": 1, "made": "2026-02-01T10:00:00Z"}, {"forge_now": 2, "made": "infinity"}):
        row = row_as_of(connection, "Odd %% name", key, at).row
        assert row is not None
        assert row["forge_now"] == key["forge_now"]


ENDS = [
    ("TRUNCATE item", "truncated"),
    ("ALTER TABLE item ALTER n TYPE int USING n * 2", "rewritten"),
    ("SELECT public.forge_disable_reactivity('item'), public.forge_enable_reactivity('item')", "not tracked any more"),
]


@pytest.mark.parametrize(("statement", "why"), ENDS)
@pytest.mark.contract("T9")
def test_what_the_log_cannot_tell_is_refused(connection: Connection, clock: Clock, statement: str, why: str) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, n int)")
    connection.execute("INSERT INTO item VALUES (1, 1)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    at = clock.tick()
    connection.execute(statement.encode())
    after = clock.tick()
    with pytest.raises(HistoryUnavailable, match=why) as caught:
        table_as_of(connection, "item", at)
    assert caught.value.oldest == after
    assert after.isoformat() in caught.value.fix
    with pytest.raises(HistoryUnavailable, match=why):
        row_as_of(connection, "item", 1, at)
    connection.execute("INSERT INTO item VALUES (2, 2)")
    assert len(table_as_of(connection, "item", after).rows) == (0 if why == "truncated" else 1)


@pytest.mark.parametrize(("statement", "_why"), [*ENDS, ("DROP TABLE item", "")])
@pytest.mark.contract("T9")
def test_a_log_that_has_every_row_tells_what_was_before(
    connection: Connection, clock: Clock, statement: str, _why: str
) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, n int)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    empty = clock.tick()
    connection.execute("INSERT INTO item VALUES (1, 1), (2, 2), (3, 3)")
    connection.execute("UPDATE item SET n = 20 WHERE id = 2")
    connection.execute("DELETE FROM item WHERE id = 3")
    at = clock.tick()
    connection.execute("UPDATE item SET n = 11 WHERE id = 1")
    connection.execute(statement.encode())
    clock.tick()
    assert in_order(table_as_of(connection, "item", at).rows) == in_order([{"id": 1, "n": 1}, {"id": 2, "n": 20}])
    assert [row_as_of(connection, "item", key, at).row for key in (1, 2, 3)] == [
        {"id": 1, "n": 1},
        {"id": 2, "n": 20},
        None,
    ]
    assert table_as_of(connection, "item", empty).rows == []


@pytest.mark.contract("T9")
def test_columns_that_came_and_went_since(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text, gone int, size varchar(5), kind int)")
    connection.execute("INSERT INTO item VALUES (0, 'untouched', 0, 's', 0)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    connection.execute("INSERT INTO item SELECT n, 'n' || n, n * 10, 's' || n, n FROM generate_series(1, 3) n")
    copy = rows_now(connection, "item")
    at = clock.tick()
    connection.execute("UPDATE item SET gone = -1 WHERE id = 1")
    connection.execute(
        "ALTER TABLE item ADD COLUMN more int DEFAULT 7, ADD COLUMN token uuid DEFAULT gen_random_uuid()"
    )
    between = clock.tick()
    wide = rows_now(connection, "item")
    connection.execute("ALTER TABLE item RENAME COLUMN name TO title")
    connection.execute("ALTER TABLE item ALTER size TYPE varchar(50)")
    connection.execute("ALTER TABLE item DROP COLUMN gone")
    connection.execute("UPDATE item SET title = 'later', size = 'extra large' WHERE id = 2")
    connection.execute("DELETE FROM item WHERE id = 3")
    clock.tick()
    copy[0]["gone"] = UNAVAILABLE  # never logged, and dropped
    assert in_order(table_as_of(connection, "item", at).rows) == in_order(copy)
    for row in wide:
        row["token"] = str(row["token"])
        if row["id"] == 0:
            row["gone"] = UNAVAILABLE
    assert in_order(table_as_of(connection, "item", between).rows) == in_order(wide)
    assert row_as_of(connection, "item", 2, at).row == copy[2]
    assert [column.name for column in table_as_of(connection, "item", at).columns] == list(copy[0])


TYPES = (
    "CREATE DOMAIN email AS text CHECK (value LIKE '%@%')",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE place AS (x int, mood mood)",
    "CREATE TYPE span AS RANGE (subtype = mood)",
    "CREATE TABLE item (id int PRIMARY KEY, mail email, mood mood, moods mood[], place place, span span, n numeric)",
    "INSERT INTO item VALUES (1, 'a@b', 'ok', '{ok,sad}', '(1,ok)', '[sad,ok]', 1.5)",
)


@pytest.mark.parametrize(
    ("statement", "forgotten"),
    [
        ("ALTER TYPE mood ADD VALUE 'glad'", set()),
        ("ALTER TYPE mood ADD VALUE 'blue' BEFORE 'sad'", set()),
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", {"mood", "moods", "place", "span"}),
        ("ALTER TYPE place ADD ATTRIBUTE y int", {"place"}),
        ("ALTER TYPE place RENAME ATTRIBUTE x TO y", {"place"}),
        ("ALTER TYPE mood RENAME TO feeling", set()),
        ("ALTER TYPE mood RENAME TO feeling; ALTER TABLE item ADD COLUMN more int", set()),
        ("ALTER DOMAIN email RENAME TO mail; ALTER TABLE item ADD COLUMN more int", set()),
        ("ALTER DOMAIN email ADD CONSTRAINT short CHECK (length(value) < 100)", set()),
        ("ALTER DOMAIN email SET DEFAULT 'x@y'", set()),
        ("ALTER DOMAIN email DROP CONSTRAINT email_check", set()),
        ("COMMENT ON TYPE mood IS 'how one feels'; COMMENT ON COLUMN item.mood IS 'how one feels'", set()),
        ("ALTER TABLE item ALTER mood SET DEFAULT 'ok'", set()),
        ("ALTER TYPE mood ADD VALUE 'glad'; ALTER TABLE item RENAME mood TO feeling", set()),
    ],
)
@pytest.mark.contract("T9")
def test_only_columns_whose_values_are_printed_otherwise_since_are_forgotten(
    connection: Connection, clock: Clock, statement: str, forgotten: set[str]
) -> None:
    for made in TYPES:
        connection.execute(made.encode())
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    before = clock.tick()
    (row,) = rows_as_text(connection, "item")
    for part in statement.split("; "):
        connection.execute(part.encode())
    connection.execute("INSERT INTO item (id) VALUES (2)")
    clock.tick()
    found = row_as_of(connection, "item", 1, before).row
    assert found is not None
    expected = {name: UNAVAILABLE if name in forgotten else value for name, value in row.items()}
    assert {name: value if value is UNAVAILABLE else str(value) for name, value in found.items()} == expected


def rows_as_text(connection: Connection, table: str) -> Rows:
    cursor = connection.execute(f"SELECT e.key, e.value FROM {table} t, jsonb_each_text(to_jsonb(t)) e".encode())
    text: dict[str, str] = dict(cursor.fetchall())
    literal = connection.execute(f"SELECT moods::text, place::text FROM {table}".encode()).fetchone()
    assert literal is not None
    return [{**text, "moods": literal[0], "place": literal[1]}]


@pytest.mark.contract("T9")
def test_a_table_without_a_key_that_was_truncated_and_got_columns(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE note (body text, n int)")
    connection.execute("SELECT public.forge_enable_reactivity('note')")
    copies = []
    for statement in (
        "INSERT INTO note VALUES ('a', 1), ('a', 1), ('b', 2)",
        "UPDATE note SET n = n + 1",
        "TRUNCATE note",
        "INSERT INTO note VALUES ('c', 1), ('c', 1), (NULL, NULL)",
        "ALTER TABLE note ADD COLUMN more int DEFAULT 5",
        "UPDATE note SET more = 6 WHERE body IS NULL",
        "ALTER TABLE note RENAME COLUMN body TO words",
        "DELETE FROM note WHERE ctid = (SELECT min(ctid) FROM note)",
    ):
        connection.execute(statement.encode())
        copies.append((clock.tick(), rows_now(connection, "note")))
    for at, copy in copies:
        assert in_order(table_as_of(connection, "note", at).rows) == in_order(copy)


@pytest.mark.contract("T9")
def test_a_condition_is_asked_of_the_rows_of_then(connection: Connection, clock: Clock) -> None:
    connection.execute(
        "CREATE TABLE item (id int PRIMARY KEY, name text, info jsonb, tags text[], price numeric, s text)"
    )
    connection.execute("SELECT public.forge_enable_reactivity('item', exclude => '{s}')")
    connection.execute(
        "INSERT INTO item SELECT n, 'n' || n % 10, CASE WHEN n % 2 = 0 THEN 'null' ELSE jsonb_build_object('n', n) END,"
        " ARRAY['a', n::text], n / 10.0, 's' FROM generate_series(1, 1200) n"
    )
    at = clock.tick()
    connection.execute("UPDATE item SET name = 'later'")
    clock.tick()

    def found(where: str) -> list[int]:
        return sorted(row["id"] for row in table_as_of(connection, "item", at, where=where).rows)

    assert found("name = 'n3'") == list(range(3, 1200, 10))
    assert found("item.price BETWEEN 1 AND 1.2 -- a comment") == [10, 11, 12]
    assert found("(info ->> 'n')::int = 7 OR tags @> ARRAY['8'] OR name LIKE '%9' AND id < 10") == [7, 8, 9]
    assert len(found("info = 'null'")) == 600
    for where, why in (
        ("nonsense = 1", "cannot be asked"),
        ("id = (SELECT 1)", "more than one row"),
        ("true) OR (true", "not one expression|not understood"),
        ("true); DELETE FROM item; SELECT (true", "not one expression|not understood"),
        ("id / 0 = 1", "division by zero"),
        ("s = 's'", "does not have s"),
        ("", "not understood|not one"),
        ("public.forge_notify('x', 'y') IS NULL AND setval('forge.event_id', 1) > 0", "read-only"),
    ):
        with pytest.raises(HistoryUnavailable, match=why):
            found(where)
    assert len(rows_now(connection, "item")) == 1200


@pytest.mark.contract("T9")
def test_what_was_redacted_is_unknown(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE person (id int PRIMARY KEY, email text, phone text, age int)")
    connection.execute("SELECT public.forge_enable_reactivity('person')")
    connection.execute("INSERT INTO person VALUES (1, 'a@x', '1', 10), (2, 'b@x', '2', 20)")
    at = clock.tick()
    connection.execute("UPDATE person SET email = '', phone = '', age = 11 WHERE id = 1")
    connection.execute("UPDATE person SET age = age + 1")
    clock.tick()
    redact(connection, "person", 1, ["email", "phone", "age"], reason="asked to", by="ada")
    gone = {"id": 1, "email": UNAVAILABLE, "phone": UNAVAILABLE, "age": UNAVAILABLE}
    kept = {"id": 2, "email": "b@x", "phone": "2", "age": 20}
    assert in_order(table_as_of(connection, "person", at).rows) == in_order([gone, kept])
    assert [row["id"] for row in table_as_of(connection, "person", at, where="id > 0").rows] == [1, 2]
    with pytest.raises(HistoryUnavailable, match="does not have age of every row"):
        table_as_of(connection, "person", at, where="age > 10")
    connection.execute("TRUNCATE person")
    clock.tick()
    assert in_order(table_as_of(connection, "person", at).rows) == in_order([gone, kept])


@pytest.mark.contract("T9")
def test_several_tables_are_of_one_instant(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE b (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('a'), public.forge_enable_reactivity('b')")
    connection.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    at = clock.tick()
    connection.execute("TRUNCATE a, b")
    clock.tick()
    found = as_of(connection, ["a", "b"], at)
    assert {name: (past.at, past.rows) for name, past in found.items()} == {
        "a": (at, [{"id": 1}]),
        "b": (at, [{"id": 1}]),
    }


def test_an_instant_from_before_the_log_is_refused(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    before = clock.tick()
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    clock.tick()
    with pytest.raises(HistoryUnavailable, match="first recorded instant"):
        table_as_of(connection, "item", datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(HistoryUnavailable, match="tracked since"):
        table_as_of(connection, "item", before)


def test_a_trimmed_past_is_refused(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    at = clock.tick()
    connection.execute("INSERT INTO item VALUES (1)")
    connection.execute(
        "INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)"
        " SELECT 'x', 'size', 1, id, transaction_id FROM forge.forge_event_log ORDER BY id DESC LIMIT 1"
    )
    connection.execute("INSERT INTO item VALUES (2)")
    after = clock.tick()
    with pytest.raises(HistoryUnavailable, match="trimmed"):
        row_as_of(connection, "item", 1, at)
    assert len(table_as_of(connection, "item", after).rows) == 2


def test_bad_questions_are_refused(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    with pytest.raises(TrackingError, match="no table"):
        table_as_of(connection, "nothing", FAR)
    with pytest.raises(HistoryUnavailable, match="not tracked"):
        table_as_of(connection, "item", FAR)
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    clock.tick()
    with pytest.raises(HistoryUnavailable, match="time zone"):
        table_as_of(connection, "item", datetime(2026, 1, 1))
    with pytest.raises(HistoryUnavailable, match="key of item is id"):
        row_as_of(connection, "item", {"no": 1}, FAR)
    with pytest.raises(HistoryUnavailable, match="cannot be that"):
        row_as_of(connection, "item", "x", FAR)
    with connection.transaction(), pytest.raises(HistoryUnavailable, match="inside a transaction"):
        table_as_of(connection, "item", FAR)
    assert table_as_of(connection, "item", FAR).rows == []


@pytest.mark.contract("T9")
def test_a_document_nested_3000_deep_in_a_table_that_was_altered(connection: Connection, clock: Clock) -> None:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body jsonb, note text)")
    connection.execute("SELECT public.forge_enable_reactivity('document')")
    connection.execute("INSERT INTO document VALUES (1, (repeat('[', 3000) || repeat(']', 3000))::jsonb, 'a')")
    at = clock.tick()
    [before] = row_as_of(connection, "document", 1, at).rows
    connection.execute("ALTER TABLE document RENAME COLUMN note TO words")
    connection.execute("DELETE FROM document")
    clock.tick()
    assert row_as_of(connection, "document", 1, at).rows == table_as_of(connection, "document", at).rows == [before]
