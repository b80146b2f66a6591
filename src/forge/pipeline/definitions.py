"""Definitions of tables at the time of their changes; they give the JSON of an image its types.

A definition has the number of its `forge.table_version`, or a negative number of the lake for changes of other sources.
"""

from collections.abc import Sequence

import msgspec

from forge.values import Column


class Definition(msgspec.Struct, frozen=True):
    """One version of one table. `key` is empty when the table has no key."""

    version: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The table's name with its schema; paths in the lake are built from it.

        >>> Definition(1, "public", "orders", ()).name
        'public.orders'
        """
        return f"{self.schema}.{self.table}"


def encode(columns: Sequence[Column]) -> str:
    """Encode columns as the JSON text that the lake stores."""
    return msgspec.json.encode(list(columns)).decode()


def decode(columns: str) -> tuple[Column, ...]:
    """Decode columns from the text of `encode` or of forge.table_version.

    >>> decode(encode([Column("id", "bigint")]))
    (Column(name='id', type='bigint', kind='plain'),)
    """
    return msgspec.json.decode(columns, type=tuple[Column, ...])
