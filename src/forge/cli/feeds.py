"""Helpers shared by commands that take any source: the owner of a URL, and the options of a filter.

A PostgreSQL URL without `feed`, or with `feed=log`, means the trigger log, for which the commands can do more than for
any other source; no URL at all means the same.
"""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

import typer

from forge.capture import Filter
from forge.capture.urls import split_option
from forge.change import Op
from forge.cli.session import CommandSession

Url = Annotated[
    str | None, typer.Argument(metavar="[URL]", help="Another database than the configured; any source's URL.")
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="TABLE", help="Only this table. May be repeated, may have * and ?."),
]
Operations = Annotated[
    list[Op] | None, typer.Option("--op", metavar="OP", help="Only inserts, updates, … May be repeated.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="A,B", help="Only these columns and the key, and what changed them.")
]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only rows like this: \"status = 'paid' AND total > 10\".")
]


def filter_of(
    tables: Sequence[str] | None, operations: Sequence[Op] | None, columns: str | None, where: str | None
) -> Filter:
    """The filter that the options ask for; raises ConfigError for a condition that is none."""
    names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
    filter = Filter(tuple(tables or ()), tuple(operations or ()), names, where)
    filter.check()
    return filter


def own(url: str | None) -> tuple[str | None, bool]:
    """A URL without `feed=log`, and whether it means the log.

    >>> own("postgresql://db/shop?feed=log"), own("postgresql://db/shop?feed=wal")[1], own("host=db")[1], own(None)[1]
    (('postgresql://db/shop', True), False, True, True)
    """
    if url is None or not url.startswith(("postgresql://", "postgres://")):
        return url, url is None or "://" not in url
    try:
        plain, feed = split_option(url, "feed")
    except ValueError:  # an invalid URL is reported when it is used
        return url, True
    return (plain, True) if feed in (None, "log") else (url, False)


def chosen(run: CommandSession, url: str | None) -> tuple[str | None, bool]:
    """As `own`, of a command's argument; without one, of the configured database where that is not the log."""
    if url is not None:
        return own(url)
    configured = run.config.database_url
    return (None, True) if own(configured)[1] else (configured, False)


def home_schema(url: str) -> str:
    """The schema whose tables go by their bare name.

    >>> home_schema("mysql://root@db/shop"), home_schema("sqlite:///a.db"), home_schema("postgresql://db/shop?feed=wal")
    ('shop', 'main', 'public')
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return "main"
    if parts.scheme in ("postgresql", "postgres"):
        return "public"
    return parts.path.lstrip("/").partition(".")[0]
