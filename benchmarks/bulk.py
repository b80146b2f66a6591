"""100,000 rows written by one statement: tracked and by the peer's row trigger, against the same write untracked."""

from psycopg import sql

from benchmarks.bench import FORGE, PEER, UNTRACKED, Bench, checkpoint, script, timed, track
from benchmarks.figures import Figure, at_most, figure, ratios
from forge.postgres.connection import Connection, connect

ROWS = 100_000
SUFFIX = {UNTRACKED: "untracked", FORGE: "forge", PEER: "peer"}
TABLES = {
    "probe": (
        "INSERT INTO {} SELECT g, 'name ' || g, g, repeat('x', 100) FROM generate_series(1, %s) g",
        "UPDATE {} SET n = n + 1",
    ),
    "orders": (
        "INSERT INTO {} (customer_id, status, total, note)"
        " SELECT g %% 1000 + 1, 'placed', (g %% 10000) / 100.0, 'note ' || g FROM generate_series(1, %s) g",
        "UPDATE {} SET status = 'paid'",
    ),
}


def run(bench: Bench) -> list[Figure]:
    """Rounds of: empty the table, insert, update."""
    rounds, peer_rounds = (2, 1) if bench.quick else (5, 2)
    seconds: dict[tuple[str, str, str], list[float]] = {}
    with bench.database() as url, connect(url) as connection:
        for variant, suffix in SUFFIX.items():
            connection.execute(script("tables").replace(b"{0}", suffix.encode()))
            for table in TABLES:
                track(connection, variant, f"{table}_{suffix}")
        for turn in range(rounds):
            bench.say(f"bulk writes, round {turn + 1} of {rounds}")
            for table in TABLES:
                for variant in (UNTRACKED, FORGE, *([PEER] if turn < peer_rounds else [])):
                    taken = _write(connection, table, SUFFIX[variant])
                    for kind, value in zip(("insert", "update"), taken, strict=True):
                        seconds.setdefault((kind, table, variant), []).append(value)
    return [found for kind, limit in (("insert", 1.6), ("update", 2.0)) for found in _figures(kind, limit, seconds)]


def _figures(kind: str, limit: float, seconds: dict[tuple[str, str, str], list[float]]) -> list[Figure]:
    found = []
    for table in TABLES:
        base = seconds[kind, table, UNTRACKED]
        peer = seconds[kind, table, PEER]
        name = f"{kind} 100k rows, table {table}"
        found.append(at_most(figure("bulk", name, ratios(seconds[kind, table, FORGE], base), "ratio"), limit))
        found.append(figure("bulk", f"{name}: row trigger", ratios(peer, base[: len(peer)]), "ratio"))
    return found


def _write(connection: Connection, table: str, suffix: str) -> tuple[float, float]:
    name = sql.Identifier(f"{table}_{suffix}")
    insert, update = (sql.SQL(text).format(name) for text in TABLES[table])
    checkpoint(connection)
    connection.execute(sql.SQL("TRUNCATE {}").format(name))
    return (
        timed(lambda: connection.execute(insert, (ROWS,))),
        timed(lambda: connection.execute(update)),
    )
