"""Origin of a consumer's changes when it is not this database's own log: a source, by its URL.

A URL that cannot be a consumer's source is refused when the consumer is declared; this opens no connection.
"""

import re
import zlib
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forge.capture.capabilities import need
from forge.capture.filters import Filter
from forge.capture.source import Source
from forge.capture.urls import open_source, split_option
from forge.errors import ConsumerInvalid, CursorForeign, CursorInvalid, ForgeError

NOW: Final = "now"
START: Final = "start"
"""In place of a cursor, beside `now` (commits from now on): the existing rows, then new changes."""
INSIDE: Final = "#"
"""In a saved text, the number of handled changes of a batch follows this character."""
_MOST_SLOT: Final = 63
_CURSOR: Final = re.compile(r"([a-z]+)[0-9]+_[^\s#]+")
_KINDS: Final = {"forge": "log"}
"""Cursors begin with the kind of their source; those of the log do not."""


class ConsumerOrigin(msgspec.Struct, frozen=True):
    """A source that a consumer reads. `name` contains no secrets, and is unique for each queue or slot."""

    url: str
    wanted: Filter
    kind: str
    name: str
    shared: bool
    """Whether other readers may read it too, without losing changes to each other."""

    def __repr__(self) -> str:
        return f"ConsumerOrigin({self.text!r})"

    @property
    def text(self) -> str:
        """The text that is stored in the database."""
        return f"{self.kind} {self.name}"

    @classmethod
    def of(cls, consumer: str, url: str, wanted: Filter) -> "ConsumerOrigin":
        """Return the source of a consumer; raise ConsumerInvalid."""
        url, slot = _with_slot(consumer, url)
        try:
            source = open_source(url, wanted)
            need(source.capabilities, "durable", source=source.name)
        except ForgeError as error:
            raise ConsumerInvalid(f"{consumer}: {error}", fix=error.fix) from None
        name = source.name if slot is None else f"{source.name} slot {slot}"
        return cls(url, wanted, source.kind, name, source.capabilities.replayable)

    def open(self) -> Source:
        return open_source(self.url, self.wanted)

    def check_start(self, consumer: str, start: str) -> None:
        """Raise ConsumerInvalid where the source does not support the consumer's start."""
        if start == START and not self.open().capabilities.snapshots:
            raise ConsumerInvalid(
                f"{consumer} cannot begin at the start: {self.name} cannot be asked for the rows that are there",
                fix='start="now"',
            )


def _with_slot(consumer: str, url: str) -> tuple[str, str | None]:
    """Add a slot for the consumer to a WAL URL that names none."""
    _, feed = split_option(url, "feed")
    if feed != "wal":
        return url, None
    _, slot = split_option(url, "slot")
    if slot is not None:
        return url, slot
    slot = slot_name(urlsplit(url).path.strip("/"), consumer)
    return f"{url}&slot={slot}", slot


def slot_name(database: str, consumer: str) -> str:
    """
    >>> slot_name("shop", "search"), slot_name("shop", "orders-to-nats")
    ('forge_shop_search', 'forge_shop_orders_to_nats_39c20f8d')
    """
    word = f"forge_{database}_{consumer}"
    plain = re.sub(r"[^a-z0-9_]", "_", word.lower())
    if plain == word and len(word) <= _MOST_SLOT:
        return word
    return f"{plain[: _MOST_SLOT - 9]}_{zlib.crc32(word.encode()):08x}"


def place_of(consumer: str, origin: str, to: str) -> str:
    """Return the saved form of a position for a consumer of a source: a cursor of that kind of source, `now` or
    `start`.

    >>> place_of("x", "sqlite shop.db", "sqlite1_6f_7.8#3")
    'sqlite1_6f_7.8'
    >>> place_of("x", "sqlite shop.db", "mysql1_6f_7")
    Traceback (most recent call last):
    forge.errors.CursorForeign: x reads sqlite shop.db, and that is a cursor of another source
    fix: rewind --to start (the rows that are there, then what follows), --to now, or to a cursor of it
    """
    if to in (NOW, START):
        return to
    text = to.partition(INSIDE)[0]
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise CursorInvalid(f"{to[:60]!r} is not a cursor", fix=ELSE)
    if _KINDS.get(found[1], found[1]) != origin.partition(" ")[0]:
        raise CursorForeign(f"{consumer} reads {origin}, and that is a cursor of another source", fix=ELSE)
    return text


ELSE: Final = "rewind --to start (the rows that are there, then what follows), --to now, or to a cursor of it"
