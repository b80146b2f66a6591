"""One-row transactions by pgbench on 8 connections: how much of the untracked speed is left, with a reader that takes
in every change at the same time. The reader is a process of its own, and after each turn must have seen each change
exactly once."""

from benchmarks.bench import FORGE, PEER, UNTRACKED, Bench, checkpoint, track
from benchmarks.figures import Figure, at_least, figure, ratios
from benchmarks.follower import following
from forge.postgres.connection import Connection, connect

ROWS = 100_000
TURNS = (
    # how it is called, the table, how its reader is woken, what the writers set
    ("untracked", "untracked", None, ""),
    ("auto", "forge", "auto", ""),
    ("notify", "forge", "notify", ""),
    ("row trigger", "peer", "listen", ""),
    ("untracked, no wait for the disk", "untracked", None, "-c synchronous_commit=off"),
    ("auto, no wait for the disk", "forge", "auto", "-c synchronous_commit=off"),
)


def run(bench: Bench) -> list[Figure]:
    """Rounds of all the turns, one after the other."""
    rounds, seconds = (2, 3) if bench.quick else (5, 5)
    rates: dict[str, list[float]] = {name: [] for name, *_ in TURNS}
    with bench.database() as url, connect(url) as connection:
        for variant, table in ((UNTRACKED, "untracked"), (FORGE, "forge"), (PEER, "peer")):
            _fill(connection, table)
            track(connection, variant, table)
        for turn in range(rounds):
            for name, table, mode, options in TURNS:
                bench.say(f"one-row transactions, round {turn + 1} of {rounds}: {name}")
                checkpoint(connection)
                rates[name].append(_turn(bench, url, table, mode, options, seconds))
    left = figure(
        "transactions", "left of untracked, wakeup=auto", ratios(rates["auto"], rates["untracked"]), "percent"
    )
    gain = figure("transactions", "wakeup=auto over notify", ratios(rates["auto"], rates["notify"]), "ratio")
    return [
        at_least(left, 0.45),
        figure("transactions", "left of untracked, notify", ratios(rates["notify"], rates["untracked"]), "percent"),
        figure(
            "transactions",
            "left of untracked, row trigger",
            ratios(rates["row trigger"], rates["untracked"]),
            "percent",
        ),
        at_least(gain, 1.5),
        figure(
            "transactions",
            "left of untracked, auto, no wait for the disk",
            ratios(rates["auto, no wait for the disk"], rates["untracked, no wait for the disk"]),
            "percent",
        ),
        *(figure("transactions", f"transactions, {name}", rates[name], "rate") for name, *_ in TURNS),
    ]


def _fill(connection: Connection, table: str) -> None:
    connection.execute(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text, n int, note text);"
        f"INSERT INTO {table} SELECT g, 'name ' || g, g, repeat('x', 100) FROM generate_series(1, {ROWS}) g;".encode()
    )
    connection.execute(f"VACUUM ANALYZE {table}".encode())


def _turn(bench: Bench, url: str, table: str, mode: str | None, options: str, seconds: float) -> float:
    text = f"\\set id random(1, {ROWS})\nUPDATE {table} SET n = n + 1 WHERE id = :id;\n"
    if mode is None:
        return bench.pgbench(url, text, seconds=seconds, options=options).result()[1]
    with following(url, mode) as follower:
        done, rate = bench.pgbench(url, text, seconds=seconds, options=options).result()
        follower.expect(done)
    return rate
