"""A run, shown: a table in the terminal, JSON to keep, a page with charts in the documentation."""

import os
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import lake_growth, versions
from benchmarks.chart import Bar, chart
from benchmarks.figures import Figure

DOCS = Path(__file__).parent.parent / "docs"
TITLES = {
    "bulk": "Bulk writes: time, over the same statement untracked",
    "transactions": "One-row transactions, 8 connections",
    "reading": "Reading the log back",
    "latency": "Wake-up: commit to reader",
    "polling": "A poll with nothing new",
    "memory": "Bounded memory",
    "matching": "Matching a change to live queries",
    "query_bus": "The query bus",
    "track": "Tracked SQLAlchemy: ORM flushes of 1,000 rows",
    "live_latency": "Live queries: commit to client, 200 changes per second",
    "fanout": "Fan-out of one query",
    "feed_grid": "Changes per second to authorized clients",
    "subscribers": "Memory of idle subscribers",
    "pruning": "Subscribers whom a write does not concern",
    "browser": "In the browser",
    "cache": "Cached queries",
    "queues": "Messages into queues, in batches of 500",
    "consumers": "A durable consumer over a backlog",
    "webhooks": "Webhooks, one change a request",
    "outbox": "The outbox",
    "lake_source": "The log into Spark",
    "lake_flow": "The log into the lake",
    "lake_growth": "A small batch into tables of different sizes",
    "lake_versions": "Change versions of a whole lake",
    "versions": "Change versions: pages of 100 changes, and three strategies",
    "wal": "The WAL of PostgreSQL",
    "mysql": "The binary log of MariaDB",
    "sqlite": "SQLite: the queue and the hook",
    "mongo": "Change streams of MongoDB",
    "feeds": "Beside the Debezium engine",
}
CHARTS = {
    "bulk": "Bulk writes of 100,000 rows: time over untracked (less is better)",
    "transactions": "One-row transactions per second, 8 connections",
    "fanout": "Messages per second to clients of one query",
    "feed_grid": "Changes per second to authorized clients, below a latency",
}
PLOTS = {"lake_growth": lake_growth.plots, "versions": versions.plots}
HEADER = """# Benchmarks

`make bench` measures these on a temporary server with the settings of the embedded one: fsync on,
synchronous_commit on. What is compared runs in turns in one run; a figure is the median of its rounds.
Absolute numbers are this machine's, ratios carry over better. `make bench ARGS=--write-docs` writes this
page; with `--only` the sections of what was measured.
"""


class Run(msgspec.Struct, frozen=True):
    """Everything that was measured at one time on one machine."""

    at: datetime
    machine: str
    postgres: int
    quick: bool
    figures: list[Figure]


def machine() -> str:
    """What the speed depends on, without a name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GB of memory"


def encoded(run: Run) -> bytes:
    """The run as JSON."""
    return msgspec.json.format(msgspec.json.encode(run)) + b"\n"


def print_table(run: Run) -> None:
    """Every figure beside its target."""
    console = Console()
    if not console.is_terminal:
        console.width = 130
    table = Table(box=box.SIMPLE if console.is_terminal else box.ASCII2, title=_where(run), title_justify="left")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_column("lowest – highest", justify="right", style="dim")
    table.add_column("target", justify="right")
    table.add_column("")
    for group, figures in _groups(run):
        table.add_row(f"[bold]{TITLES[group]}")
        for figure in figures:
            colour = {"✓": "green", "✗": "red"}.get(figure.mark, "default")
            mark = f"[{colour}]{figure.mark}"
            table.add_row(f"  {figure.name}", figure.shown, figure.spread, figure.target, mark)
    console.print(table)


def write_docs(run: Run) -> None:
    """docs/benchmarks.md and its charts: what was measured again replaces its section, the others stay."""
    page = DOCS / "benchmarks.md"
    known = _sections(page.read_text("utf-8")) if page.exists() else {}
    new = {TITLES[group]: _section(group, figures, run) for group, figures in _groups(run)}
    sections = [text for title in TITLES.values() if (text := new.get(title) or known.get(title))]
    notes = (Path(__file__).parent / "notes.md").read_text("utf-8")
    page.write_text("\n".join([HEADER, *sections, notes]))


def _sections(page: str) -> dict[str, str]:
    """The parts of a page by their titles.

    >>> _sections("# All\\n\\n## One\\n\\n1\\n\\n## Two\\n2\\n")
    {'One': '## One\\n\\n1\\n', 'Two': '## Two\\n2\\n'}
    """
    parts = ("\n" + page).split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def _section(group: str, figures: list[Figure], run: Run) -> str:
    lines = [
        f"## {TITLES[group]}",
        "",
        f"{_where(run)}.",
        "",
        "| | median | lowest – highest | target | |",
        "| --- | --: | --: | --: | --- |",
        *(f"| {f.name} | {f.shown} | {f.spread} | {f.target} | {f.mark} |" for f in figures),
        "",
    ]
    for name, title, picture in _charts(group, figures):
        (DOCS / "images").mkdir(parents=True, exist_ok=True)
        (DOCS / "images" / f"bench-{name}.svg").write_text(picture)
        lines += [f"![{title}](images/bench-{name}.svg)", ""]
    return "\n".join(lines)


def _charts(group: str, figures: list[Figure]) -> Iterator[tuple[str, str, str]]:
    """The pictures of a group: name, title, SVG."""
    if group in CHARTS and (bars := list(_bars(group, figures))):
        yield group, CHARTS[group], chart(CHARTS[group], bars)
    if group in PLOTS:
        for name, picture in PLOTS[group](figures).items():
            yield name, name, picture


def _where(run: Run) -> str:
    quick = ", a quick run with smaller tables" if run.quick else ""
    return f"{run.at:%Y-%m-%d}, {run.machine}, PostgreSQL {run.postgres}{quick}"


def _groups(run: Run) -> Iterator[tuple[str, list[Figure]]]:
    for group, figures in groupby(run.figures, key=lambda figure: figure.group):
        yield group, list(figures)


def _bars(group: str, figures: list[Figure]) -> Iterator[Bar]:
    form = "ratio" if group == "bulk" else "rate"
    for figure in figures:
        if figure.form == form and " over " not in figure.name:
            ours = not any(other in figure.name for other in ("row trigger", "untracked", "bare", "Supabase"))
            yield Bar(figure.name, figure.value, figure.shown, ours)
