"""Tracked SQLAlchemy: what it costs ORM flushes of 1,000 rows, and what it sees, beside SQLAlchemy-Continuum.

The same model, the same work, each way in a process of its own (Continuum instruments mappers for good), in turns. A
row has about 130 bytes. Where triggers record, `track` only says who it is; elsewhere it records.

    python -m benchmarks.track WAY URL ROWS     works once for each line of its input, prints the seconds
"""

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, configure_mappers, declarative_base

import forge
from benchmarks.bench import Bench, python
from benchmarks.figures import Figure, at_least, at_most, figure, ratios
from forge.postgres.connection import connect
from forge.testing import fresh_database
from forge.testing.mariadb import fresh_mariadb, mariadb_missing, temporary_mariadb

WORKS = ("insert", "update", "delete")
UNTRACKED, TRACK, DEFAULT, FASTER = "untracked", "track", "continuum", "continuum subquery"
CONTINUUM_ROUNDS = 2
BULK = (
    "ORM bulk insert",
    "ORM bulk update",
    "ORM bulk delete",
    "Core insert",
    "Core update of many",
    "Core delete",
    "raw SQL",
)


def run(bench: Bench) -> list[Figure]:
    """With triggers first, then on databases without."""
    rows = 1000
    rounds = 5 if bench.quick else 15
    bench.say("tracked SQLAlchemy: with triggers")
    found = _with_triggers(bench, rows, rounds)
    for name, databases in (("SQLite", _sqlite), ("PostgreSQL", _postgres), ("MariaDB", _mariadb)):
        if name == "MariaDB" and mariadb_missing():
            continue
        bench.say(f"tracked SQLAlchemy: {name} without triggers")
        ways = (UNTRACKED, TRACK, DEFAULT, FASTER) if name == "SQLite" else (UNTRACKED, TRACK)
        with databases(bench, len(ways)) as urls:
            found += _without_triggers(name, list(zip(ways, urls, strict=True)), rows, rounds)
    bench.say("tracked SQLAlchemy: what is seen")
    with _sqlite(bench, 2) as (mine, other):
        found.append(
            at_least(figure("track", f"of {len(BULK)} bulk writes, seen by track", [_seen(TRACK, mine)], "count"), 7)
        )
        found.append(figure("track", f"of {len(BULK)} bulk writes, seen by Continuum", [_seen(FASTER, other)], "count"))
    return found


def _with_triggers(bench: Bench, rows: int, rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        urls = [stack.enter_context(bench.database()) for _ in range(2)]
        for url in urls:
            _make_table(_sqlalchemy(url))
            with connect(url) as connection:
                connection.execute("SELECT forge_enable_reactivity('bench_orders')")
        taken = _turns([(UNTRACKED, _sqlalchemy(urls[0])), (TRACK, _sqlalchemy(urls[1]))], rows, rounds)
    plain, tracked = taken[UNTRACKED], taken[TRACK]
    return [
        at_most(
            figure(
                "track",
                f"triggers record: {work} of {rows:,} rows, with context over without track",
                [ratio - 1 for ratio in ratios(*_both(tracked, plain, place))],
                "percent",
            ),
            0.10,
        )
        for place, work in enumerate(WORKS)
    ]


def _without_triggers(name: str, ways: Sequence[tuple[str, str]], rows: int, rounds: int) -> list[Figure]:
    for _, url in ways:
        _make_table(url)
    taken = _turns(ways, rows, rounds)
    found = []
    for place, work in enumerate(WORKS):
        found.append(figure("track", f"{name}: {work} of {rows:,} rows, untracked", _ms(taken[UNTRACKED], place), "ms"))
        for way in [way for way, _ in ways if way != UNTRACKED]:
            beside = taken[UNTRACKED][: len(taken[way])]
            ratio = figure("track", f"{name}: {work}, {way}", ratios(*_both(taken[way], beside, place)), "ratio")
            found.append(at_most(ratio, 2.0) if way == TRACK else ratio)
    return found


def _both(these: list[list[float]], those: list[list[float]], place: int) -> tuple[list[float], list[float]]:
    return [one[place] for one in these], [one[place] for one in those]


def _ms(taken: list[list[float]], place: int) -> list[float]:
    return [one[place] * 1000 for one in taken]


def _turns(ways: Sequence[tuple[str, str]], rows: int, rounds: int) -> dict[str, list[list[float]]]:
    """Each way in turn, as often as there are rounds; the first of each is not counted."""
    with ExitStack() as stack:
        workers = {way: stack.enter_context(_worker(way, url, rows)) for way, url in ways}
        for work in workers.values():
            work()
        taken: dict[str, list[list[float]]] = {way: [] for way in workers}
        for number in range(rounds):
            for way, work in workers.items():
                if way not in (DEFAULT, FASTER) or number < CONTINUUM_ROUNDS:  # it takes minutes
                    taken[way].append(work())
    return taken


@contextmanager
def _worker(way: str, url: str, rows: int) -> Iterator[Callable[[], list[float]]]:
    process = subprocess.Popen(
        python("benchmarks.track", way, url, str(rows)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    given, said = process.stdin, process.stdout

    def work() -> list[float]:
        given.write("\n")
        given.flush()
        line = said.readline()
        if not line:
            raise RuntimeError(f"{way} on {url.partition(':')[0]} failed")
        seconds: list[float] = json.loads(line)
        return seconds

    try:
        yield work
    finally:
        given.close()
        process.wait()
        said.close()


@contextmanager
def _sqlite(bench: Bench, count: int) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield [f"sqlite:///{Path(folder) / str(n)}.db" for n in range(count)]


@contextmanager
def _postgres(bench: Bench, count: int) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [_sqlalchemy(stack.enter_context(fresh_database(bench.server))) for _ in range(count)]


@contextmanager
def _mariadb(bench: Bench, count: int) -> Iterator[list[str]]:
    with temporary_mariadb() as server, ExitStack() as stack:
        urls = [stack.enter_context(fresh_mariadb(server)) for _ in range(count)]
        yield [url.replace("mysql://", "mariadb+pymysql://") for url in urls]


def _sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


# What a worker does


def _model(way: str) -> Any:
    base: Any = declarative_base()
    options: dict[str, Any] = {}
    if way.startswith(DEFAULT):
        from sqlalchemy_continuum import make_versioned  # type: ignore[import-untyped]

        make_versioned(user_cls=None, options={"strategy": "subquery"} if way == FASTER else {})
        options["__versioned__"] = {}
    columns = {
        "__tablename__": "bench_orders",
        "id": sa.Column(sa.Integer, primary_key=True),
        "mail": sa.Column(sa.String(60)),
        "total": sa.Column(sa.Float),
        "status": sa.Column(sa.String(20)),
        "note": sa.Column(sa.String(200)),
    }
    model = type("BenchOrder", (base,), {**options, **columns})
    if way.startswith(DEFAULT):
        configure_mappers()
    return model


def _engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _as_recommended)
    return engine


def _as_recommended(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _make_table(url: str) -> None:
    engine = _engine(url)
    _model(UNTRACKED).metadata.create_all(engine)
    engine.dispose()


def _orders(model: Any, rows: int) -> list[Any]:
    return [model(mail=f"customer-{n}@example.com", total=n * 0.5, status="open", note="x" * 80) for n in range(rows)]


def _flushes(engine: sa.Engine, model: Any, rows: int) -> list[float]:
    """The seconds of flushing and committing so many inserts, updates and deletes."""
    taken = []

    def flush(session: Session) -> None:
        gc.collect()
        start = perf_counter()
        session.commit()
        taken.append(perf_counter() - start)

    with forge.context(user_id="ada", function_name="bench"), Session(engine) as session:
        session.add_all(_orders(model, rows))
        flush(session)
        for order in session.scalars(sa.select(model)):
            order.status, order.total = "paid", order.total + 1
        flush(session)
        for order in session.scalars(sa.select(model)):
            session.delete(order)
        flush(session)
    return taken


def _seen(way: str, url: str) -> float:
    """How many of the bulk writes leave a trace."""
    done = subprocess.run(python("benchmarks.track", "seen", way, url), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{way} failed: {done.stderr.strip()[-500:]}")
    return float(done.stdout)


def _count_seen(way: str, url: str) -> int:
    engine, model = _engine(url), _model(way)
    model.metadata.create_all(engine)
    log = "bench_orders_version"
    if way == TRACK:
        forge.track(engine)
        forge.tracking.create_log(engine)
        log = "forge_tracked_changes"
    table = model.__table__
    works: list[Callable[[Session], object]] = [
        lambda session: session.execute(sa.insert(model), [{"mail": "a"}, {"mail": "b"}]),
        lambda session: session.execute(sa.update(model).values(status="x")),
        lambda session: session.execute(sa.delete(model).where(model.mail == "b")),
        lambda session: session.connection().execute(sa.insert(table), [{"mail": "c"}, {"mail": "d"}]),
        lambda session: session.connection().execute(
            sa.update(table).where(table.c.mail == sa.bindparam("who")).values(status="y"), [{"who": "c"}, {"who": "d"}]
        ),
        lambda session: session.connection().execute(sa.delete(table).where(table.c.mail == "c")),
        lambda session: session.execute(sa.text("UPDATE bench_orders SET status = 'raw'")),
    ]
    assert len(works) == len(BULK)
    seen = 0
    for work in works:
        with Session(engine) as session:
            before = session.execute(sa.text(f"SELECT count(*) FROM {log}")).scalar_one()
            work(session)
            session.commit()
            seen += session.execute(sa.text(f"SELECT count(*) FROM {log}")).scalar_one() > before
    return seen


def _work(way: str, url: str, rows: int) -> None:
    engine, model = _engine(url), _model(way)
    model.metadata.create_all(engine)
    if way == TRACK:
        forge.track(engine)
    for _ in sys.stdin:
        print(json.dumps(_flushes(engine, model, rows)), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "seen":
        print(_count_seen(sys.argv[2], sys.argv[3]))
    else:
        _work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
