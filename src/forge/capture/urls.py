"""Open the source of a URL: `postgresql://…?feed=log|wal`, `mysql://`, `mariadb://`, `sqlite:///`, `mongodb://`.

A source's own libraries are imported when it is opened; if they are missing, the error names the extra to install.
"""

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

from forge.capture.filters import Filter
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.capture.source import Source


def open_source(url: str, filter: Filter | None = None) -> "Source":
    """Return the source that a URL names; it connects when it is entered or read."""
    scheme = urlsplit(url).scheme
    filter = filter or Filter()
    if scheme in ("postgresql", "postgres"):
        url, feed = split_option(url, "feed")
        if feed in (None, "log"):
            from forge.capture.log import LogSource

            return LogSource(url, filter)
        if feed == "wal":
            from forge.capture.wal import WalSource

            return WalSource(url, filter)
        raise ConfigError(f"no feed {feed!r} of PostgreSQL", fix="feed=log or feed=wal")
    if scheme in ("mysql", "mariadb"):
        from forge.capture.mysql import MysqlSource

        return MysqlSource(url, filter)
    if scheme == "sqlite":
        url, feed = split_option(url, "feed")
        if feed not in (None, "queue"):
            raise ConfigError(
                f"no feed {feed!r} of a SQLite file", fix="feed=queue; the update hook is forge.capture.sqlite.Hook"
            )
        from forge.capture.sqlite import SqliteSource

        return SqliteSource(url, filter)
    if scheme in ("mongodb", "mongodb+srv"):
        from forge.capture.mongo import MongoSource

        return MongoSource(url, filter)
    raise ConfigError(
        f"no source for {scheme or 'this'}:// URLs",
        fix="postgresql://…, mysql://…, mariadb://…, sqlite:///file or mongodb://…",
    )


def split_option(url: str, name: str) -> tuple[str, str | None]:
    """Return a URL without one of its options, and that option.

    >>> split_option("postgresql://h/d?feed=wal&connect_timeout=3", "feed")
    ('postgresql://h/d?connect_timeout=3', 'wal')
    >>> split_option("sqlite:///shop.db", "feed")
    ('sqlite:///shop.db', None)
    >>> split_option("sqlite:////srv/shop.db?feed=queue", "feed")
    ('sqlite:////srv/shop.db', 'queue')
    """
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    found = [value for key, value in options if key == name]
    if not found:
        return url, None
    rest = urlencode([(key, value) for key, value in options if key != name])
    head = url.partition("?")[0]
    return f"{head}?{rest}" if rest else head, found[-1]
