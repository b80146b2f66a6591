"""Random transactions on a handful of tables: every way a row can come, change, move and go."""

import random
from collections.abc import Callable
from typing import Final

import psycopg

from forge.postgres.connection import Connection

TABLES: Final = ("thing", "part", "label", "tally")
SCHEMA: Final = (
    "create table thing (id bigint primary key, name text, price numeric(12, 2), at timestamptz default now(),"
    " tags text[], doc jsonb, ok boolean, share double precision)",
    "create table part (thing bigint, number int, made date default current_date, primary key (thing, number))",
    "create table label (word text primary key, times int not null default 0)",
    "create table tally (n int, what text)",
)
WORDS: Final = ("", "a", "b, c", 'd"e', "f\ng", "ünïcödé", "'", "NULL", "\\N", "${spark.app.name}")


def prepare(connection: Connection) -> None:
    """The tables, with rows from before they were tracked."""
    connection.execute("select forge.current_identity()")
    for statement in SCHEMA:
        connection.execute(statement.encode())
    connection.execute("insert into thing (id, name) select -i, 'old' from generate_series(1, 50) i")
    connection.execute("insert into tally select i % 3, 'old' from generate_series(1, 9) i")
    for table in TABLES:
        connection.execute("select forge_enable_reactivity(%s)", (table,))


def act(connection: Connection, chance: random.Random, *, definitions: bool) -> None:
    """One transaction; some are rolled back, some fail."""
    steps = [chance.choice(STEPS) for _ in range(chance.choice((1, 1, 1, 2, 3, 5)))]
    if definitions and chance.random() < 0.01:
        steps = [_define]
    elif chance.random() < 0.01:
        steps = [_truncate]
    try:
        with connection.transaction(force_rollback=chance.random() < 0.08):
            connection.execute(
                "select forge_context(%s, %s, %s)",
                (chance.choice(("ada", "bob", "eve")), "chaos", str(chance.random())),
            )
            for step in steps:
                step(connection, chance)
    except psycopg.errors.IntegrityError:
        pass  # two rows with one key: the server said no, and nothing happened


def _insert(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        "insert into thing (id, name, price, tags, doc, ok, share) values (%s, %s, %s, %s, %s, %s, %s)"
        " on conflict (id) do update set name = excluded.name, price = excluded.price",
        (
            chance.randrange(200),
            chance.choice(WORDS),
            chance.choice((None, "1.10", "-9999999999.99", "0")),
            chance.choice((None, [], ["x", None, "y,z"])),
            chance.choice((None, '{"a": [1, 2.50, null]}', "null", '"text"')),
            chance.choice((None, True, False)),
            chance.choice((None, 0.0, -0.0, 0.1, 1e300, float("nan"), float("inf"))),
        ),
    )


def _many(connection: Connection, chance: random.Random) -> None:
    first = chance.randrange(1000, 9000)
    connection.execute(
        "insert into thing (id, name) select i, 'many' from generate_series(%s::int, %s::int) i on conflict do nothing",
        (first, first + chance.randrange(300)),
    )


def _update(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        "update thing set name = %s, price = coalesce(price, 0) + 1 where id %% %s = %s",
        (chance.choice(WORDS), modulus := chance.choice((2, 7, 50)), chance.randrange(modulus)),
    )


def _move(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        "update thing set id = id + %s where id = %s", (chance.choice((1, 1000, 20_000)), chance.randrange(200))
    )


def _delete(connection: Connection, chance: random.Random) -> None:
    connection.execute("delete from thing where id %% 40 = %s", (chance.randrange(40),))


def _parts(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        "insert into part (thing, number) values (%s, %s)"
        " on conflict (thing, number) do update set made = part.made + 1",
        (chance.randrange(30), chance.randrange(5)),
    )


def _lose_parts(connection: Connection, chance: random.Random) -> None:
    connection.execute("delete from part where thing = %s", (chance.randrange(30),))


def _label(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        "insert into label (word) values (%s) on conflict (word) do update set times = label.times + 1",
        (chance.choice(WORDS),),
    )


def _count(connection: Connection, chance: random.Random) -> None:
    connection.execute("insert into tally values (%s, %s)", (chance.randrange(4), chance.choice(WORDS[:3])))


def _recount(connection: Connection, chance: random.Random) -> None:
    n = chance.randrange(4)
    if chance.random() < 0.5:
        connection.execute("update tally set what = %s where n = %s", (chance.choice(WORDS[:3]), n))
    else:
        connection.execute("delete from tally where ctid in (select ctid from tally where n = %s limit 2)", (n,))


def _truncate(connection: Connection, chance: random.Random) -> None:
    connection.execute(f"truncate {chance.choice(TABLES)}".encode())


def _define(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        chance.choice(
            (
                b"alter table thing add column if not exists extra int default 7",
                b"alter table thing drop column if exists extra",
                b"alter table part alter column number type bigint",
                b"alter table label add column if not exists note text",
                b"alter table label drop column if exists note",
                b"alter table tally add column if not exists more numeric(6, 1) default 1.5",
            )
        )
    )


Step = Callable[[Connection, random.Random], None]
STEPS: Final[tuple[Step, ...]] = (
    *(_insert,) * 4,
    *(_update,) * 3,
    _many,
    *(_move,) * 2,
    _delete,
    *(_parts,) * 3,
    _lose_parts,
    *(_label,) * 2,
    *(_count,) * 3,
    *(_recount,) * 2,
)
