"""How tables were defined while their changes were written: what gives the JSON of an image its types.

A definition has the number of `forge.table_version`, or a negative one of the lake's own for changes of other sources.
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
        """The table with its schema, the name that paths in the lake are made from.

        >>> Definition(1, "public", "orders", ()).name
        'public.orders'
        """
        return f"{self.schema}.{self.table}"


def encode(columns: Sequence[Column]) -> str:
    """The columns as JSON text, as the lake keeps them."""
    return msgspec.json.encode(list(columns)).decode()


def decode(columns: str) -> tuple[Column, ...]:
    """The columns of the text that `encode` returned, or of forge.table_version.

    >>> decode(encode([Column("id", "bigint")]))
    (Column(name='id', type='bigint', kind='plain'),)
    """
    return msgspec.json.decode(columns, type=tuple[Column, ...])
