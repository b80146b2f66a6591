"""Writes of the suite, independent of a database: an adapter's writer translates them.

Every database has the tables `items` and `others`, both with a key of one whole number, a short text, a whole number
and a long text, and the table `types` with a column for each of the adapter's samples. All but the key may be null.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

ITEMS: Final = "items"
OTHERS: Final = "others"
TYPES: Final = "types"
COLUMNS: Final = ("name", "amount", "note")
"""The columns of items and others besides the key: a text, a whole number, a text."""
ADDED: Final = "added"
"""The column of `AddColumn`, a text."""


class Insert(msgspec.Struct, frozen=True):
    table: str
    row: Mapping[str, Any]


class Update(msgspec.Struct, frozen=True):
    """Sets the columns in `row` of the row with the key `id`; a new value for the key column changes the key."""

    table: str
    id: int
    row: Mapping[str, Any]


class Delete(msgspec.Struct, frozen=True):
    table: str
    id: int


class Truncate(msgspec.Struct, frozen=True):
    """Empties a table at once, by the statement that the database has for it."""

    table: str


class AddColumn(msgspec.Struct, frozen=True):
    """Adds the column `ADDED`, a text, to a table."""

    table: str


class Fill(msgspec.Struct, frozen=True):
    """Inserts `count` rows from the key `first` on, with this note, the name `fill` and the amount 0, fast.

    Outside a transaction it is one of its own.
    """

    table: str
    first: int
    count: int
    note: str = ""


Operation = Insert | Update | Delete | Truncate | AddColumn | Fill
