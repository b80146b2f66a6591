"""Change versions: pages of a large corpus as its journal grows, and what each strategy costs who reads and who writes.

A corpus of documents of five resources that refer to five others each, all of them changed again and again. A page is
100 changes of one resource from a window of 10,000, asked for as an application does, until the window is told.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import quantiles
from time import perf_counter

from benchmarks.bench import Bench, checkpoint, timed
from benchmarks.figures import Figure, at_most, figure, ratios
from benchmarks.plot import Line, plot
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from forge.versions.documents import get, put
from forge.versions.identity import change_identity
from forge.versions.install import install
from forge.versions.nouns import Document, Resource
from forge.versions.reading import changes, pages
from forge.versions.resources import declare, resource_id
from forge.versions.stamps import newest
from forge.versions.strategies import Strategy, use_strategy

GROUP = "versions"
WINDOW, PAGE = 10_000, 100
HUBS = (100, 1_000, 10_000, 100_000)
"""How many documents refer to each of some identities."""
KINDS = [Resource("bench", f"kind{n}") for n in range(1, 6)]
REFERRERS, HUB = Resource("bench", "referrers"), Resource("bench", "hubs")
COMPARED: tuple[Strategy, ...] = ("journal", "denormalized", "monotonic")


def run(bench: Bench) -> list[Figure]:
    """Pages as the journal grows tenfold; then the strategies side by side."""
    documents = 100_000 if bench.quick else 1_000_000
    rows, rounds = documents * 5, 3 if bench.quick else 5
    sizes = (rows // 10, rows // 3, rows)
    found: list[Figure] = []
    with fresh_database(bench.server) as url, connect(url) as connection:
        bench.say(f"versions: {documents:,} documents, {documents * 5:,} edges")
        install(connection)
        _load(connection, documents, rows)
        taken: dict[int, list[float]] = {}
        journaled = 0
        for size in sizes:
            bench.say(f"versions: pages from a journal of {size:,} rows")
            _journal(connection, rows - size, rows - journaled)
            journaled = size
            taken[size] = [_walk(connection, rows) for _ in range(rounds + 1)][1:]
        found += [_page(f"journal of {size:,} rows", taken[size]) for size in sizes]
        grown = figure(GROUP, f"page (p95), {sizes[-1]:,} rows over {sizes[0]:,}", _grown(taken), "ratio")
        found.append(at_most(grown, 1.5))
        for strategy in COMPARED:
            bench.say(f"versions: going over to {strategy}")
            found.append(figure(GROUP, f"{strategy}: going over to it", [_switch(connection, strategy)], "s"))
            bench.say(f"versions: reading and writing by {strategy}")
            found += _reading(connection, strategy, rounds, rows)
            found += _writing(connection, strategy, documents, rounds)
    return found


def plots(figures: Sequence[Figure]) -> dict[str, str]:
    """A page against the journal's size, and a change of identity against how many refer to it, by picture."""
    found = {figure.name: figure.value for figure in figures}
    grown = [Line("100 changes of a window of 10,000", _points(found, r"page \(p95\), journal of ([\d,]+) rows"))]
    changed = [
        Line(strategy, _points(found, rf"{strategy}: identity changed, ([\d,]+) refer to it")) for strategy in COMPARED
    ]
    return {
        "versions-journal": plot("A page as the journal grows", "rows of the journal", "ms, p95", grown),
        "versions-fan-in": plot("A change of an identity, by strategy", "documents that refer to it", "ms", changed),
    }


def _points(found: Mapping[str, float], pattern: str) -> list[tuple[float, float]]:
    matches = ((re.fullmatch(pattern, name), value) for name, value in found.items())
    return sorted((float(match[1].replace(",", "")), value) for match, value in matches if match)


def _page(name: str, milliseconds: Sequence[float]) -> Figure:
    return at_most(figure(GROUP, f"page (p95), {name}", milliseconds, "ms"), 25.0)


def _grown(taken: Mapping[int, list[float]]) -> list[float]:
    return ratios(taken[max(taken)], taken[min(taken)])


def _load(connection: Connection, documents: int, rows: int) -> None:
    """All documents as they are after all changes, without a journal yet; what checks the tables is not measured."""
    numbers = [declare(connection, resource) for resource in (*KINDS, REFERRERS, HUB)]
    assert numbers == sorted(numbers)
    first, referrers, hub = numbers[0], numbers[-2], numbers[-1]
    most = max(HUBS)
    columns = "(id, resource, identity, body, content_hash, content_version, identity_version)"
    for statement in (
        "SET session_replication_role = replica",
        "CREATE UNLOGGED TABLE event AS SELECT v AS version,"
        f" CASE WHEN v <= {documents} THEN v ELSE 1 + floor(random() * {documents})::bigint END AS document,"
        f" v <= {documents} OR random() < 0.02 AS identity FROM generate_series(1, {rows}) v",
        f"INSERT INTO forge_versions.document {columns} OVERRIDING SYSTEM VALUE"
        f" SELECT document, {first} + document % 5, jsonb_build_object('key', document),"
        " jsonb_build_object('name', 'document ' || document, 'text', repeat('x', 200)), '',"
        " coalesce(max(version) FILTER (WHERE NOT identity), min(version)), max(version) FILTER (WHERE identity)"
        " FROM event GROUP BY document ORDER BY document",
        f"INSERT INTO forge_versions.document {columns} OVERRIDING SYSTEM VALUE"
        f" SELECT {documents} + n, {referrers}, jsonb_build_object('key', n), '{{\"a\": 1}}', '', 1, 1"
        f" FROM generate_series(1, {most}) n",
        *(
            f"INSERT INTO forge_versions.document {columns} OVERRIDING SYSTEM VALUE"
            f" VALUES ({documents + most + place}, {hub}, '{{\"key\": {size}}}', '{{}}', '', 1, 1)"
            for place, size in enumerate(HUBS, 1)
        ),
        "INSERT INTO forge_versions.reference (parent, name, child)"
        f" SELECT p, 'r' || n, 1 + floor(random() * {documents})::bigint"
        f" FROM generate_series(1, {documents}) p, generate_series(1, 5) n",
        *(
            "INSERT INTO forge_versions.reference (parent, name, child)"
            f" SELECT {documents} + n, 'h{size}', {documents + most + place} FROM generate_series(1, {size}) n"
            for place, size in enumerate(HUBS, 1)
        ),
        f"SELECT setval('forge_versions.change_version', {rows})",
        "RESET session_replication_role",
        "VACUUM ANALYZE",
    ):
        connection.execute(statement.encode())


def _journal(connection: Connection, above: int, upto: int) -> None:
    """Journal the changes of some versions: older ones each time, as if less had been dropped."""
    first = resource_id(connection, KINDS[0])
    for statement in (
        "INSERT INTO forge_versions.document_change (version, document, resource)"
        f" SELECT version, document, {first} + document % 5 FROM event WHERE version > {above} AND version <= {upto}",
        "INSERT INTO forge_versions.identity_change (version, document)"
        f" SELECT version, document FROM event WHERE identity AND version > {above} AND version <= {upto}",
        "VACUUM ANALYZE forge_versions.document_change, forge_versions.identity_change",
    ):
        connection.execute(statement.encode())
    checkpoint(connection)


def _switch(connection: Connection, strategy: Strategy) -> float:
    seconds = timed(partial(use_strategy, connection, strategy))
    connection.execute("VACUUM ANALYZE forge_versions.document, forge_versions.reference")
    checkpoint(connection)
    return seconds


def _walk(connection: Connection, last: int) -> float:
    """The time of a page, at the 95th percentile, of all pages of the window that ends there."""
    row = connection.execute(
        "SELECT min(version) FROM (SELECT version FROM forge_versions.document_change"
        " WHERE resource = %s AND version <= %s ORDER BY version DESC LIMIT %s) last",
        (resource_id(connection, KINDS[0]), last, WINDOW),
    ).fetchone()
    assert row is not None
    first = int(row[0])
    taken, told = [], 0
    start = perf_counter()
    for page in pages(lambda after: changes(connection, KINDS[0], first, last, after=after, limit=PAGE)):
        taken.append((perf_counter() - start) * 1000)
        told += len(page.items)
        start = perf_counter()
    if not WINDOW / 2 < told < WINDOW * 2:
        raise RuntimeError(f"a window of {WINDOW} changes told {told}")
    return quantiles(taken, n=20)[-1]


def _anywhere(connection: Connection, rows: int) -> float:
    """The same of the first pages of windows that lie anywhere."""
    taken = []
    for place in range(1, 41):
        first = rows * place // 41
        start = perf_counter()
        changes(connection, KINDS[0], first, min(first + WINDOW * 5, rows), limit=PAGE)
        taken.append((perf_counter() - start) * 1000)
    return quantiles(taken, n=20)[-1]


def _reading(connection: Connection, strategy: Strategy, rounds: int, rows: int) -> list[Figure]:
    _walk(connection, rows)
    last = [_walk(connection, rows) for _ in range(rounds)]
    old = [_anywhere(connection, rows) for _ in range(rounds)]
    return [
        _page(strategy, last),
        figure(GROUP, f"{strategy}: page of a window anywhere, mostly changed since (p95)", old, "ms"),
    ]


def _writing(connection: Connection, strategy: Strategy, documents: int, rounds: int) -> list[Figure]:
    content, identity = [], []
    for turn in range(rounds):
        some = [get(connection, id) for id in range(1 + turn, documents, documents // 50)]
        mark = f"{strategy} {turn}"
        content.append(_mean(connection, partial(_rewrite, connection, mark), some))
        identity.append(_mean(connection, partial(_rename, connection, mark), some))
    found = [
        figure(GROUP, f"{strategy}: content changed", content, "ms"),
        figure(GROUP, f"{strategy}: identity changed, 5 refer to it", identity, "ms"),
    ]
    most = documents + max(HUBS)
    for place, size in enumerate(HUBS, 1):
        changed, first, other = [], [], []
        for turn in range(rounds):
            checkpoint(connection)
            key = {"key": size, "turn": f"{strategy} {turn}"}
            changed.append(timed(partial(change_identity, connection, most + place, key)) * 1000)
            stamp = newest(connection)
            first.append(timed(partial(changes, connection, REFERRERS, stamp, stamp, limit=PAGE)))
            other.append(timed(partial(changes, connection, KINDS[0], stamp, stamp, limit=PAGE)) * 1000)
        update = figure(GROUP, f"{strategy}: identity changed, {size:,} refer to it", changed, "ms")
        largest = size == max(HUBS)
        found.append(at_most(update, 5.0) if largest and strategy != "monotonic" else update)
        if largest:
            page = figure(GROUP, f"{strategy}: first page of {size:,} that refer to it", first, "s")
            found.append(at_most(page, 1.0))
            found.append(figure(GROUP, f"{strategy}: page of a resource that does not", other, "ms"))
    return found


def _mean(connection: Connection, write: Callable[[Document], object], documents: Sequence[Document]) -> float:
    """Milliseconds for each of some documents."""
    checkpoint(connection)
    return timed(lambda: [write(document) for document in documents]) * 1000 / len(documents)


def _rewrite(connection: Connection, mark: str, document: Document) -> None:
    references = {name: reference.document for name, reference in document.references.items()}
    put(connection, document.resource, document.identity, {**document.body, "mark": mark}, references)


def _rename(connection: Connection, mark: str, document: Document) -> None:
    change_identity(connection, document, {"key": document.id, "mark": mark})
