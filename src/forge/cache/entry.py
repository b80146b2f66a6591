"""Cache entries: an answer, its dependencies, and the snapshot at which it was computed.

An entry alone proves nothing. Each reader decides on each use whether it is valid: see `forge.cache.validity`. A store
may therefore lose entries, return old ones or be shared by any number of nodes.

*Stamps* invalidate entries by hand, and where no log reports writes. A stamp is a random text under the name of a
table, of an entry, or of a name prefix; invalidation writes a new stamp. An entry has the stamps from before it was
computed, and is invalid when one of its stamps has changed. All stamps end with their `epoch`, so a store that lost
its stamps has also lost its entries.
"""

import secrets
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

EPOCH: Final = ""
"""The name of the epoch among the stamps."""

Stamps = Mapping[str, str]


class CacheEntry(msgspec.Struct, frozen=True, array_like=True):
    """An answer. `snapshot` is empty where no log reports writes; `tables` are `schema.table`."""

    version: str
    era: str
    snapshot: str
    name: str
    tables: tuple[str, ...]
    stamps: dict[str, str]
    value: bytes
    hash: str
    reads: bytes = b""

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return len(self.value) + len(self.reads) + 500

    def stands(self, stamps: Stamps) -> bool:
        """Whether none of its stamps has changed since it was computed."""
        if stamps.get(EPOCH) != self.stamps.get(EPOCH):
            return False
        return all(self.stamps.get(name) == stamp for name, stamp in stamps.items() if self.concerned(name))

    def concerned(self, stamp: str) -> bool:
        """Whether a stamp of this name applies to the entry.

        >>> entry = CacheEntry("", "", "", "top/7", ("public.orders",), {}, b"", "")
        >>> [entry.concerned(name) for name in ("t:public.orders", "t:x.orders", "b:Orders", "n:top/7", "n:t", "p:t")]
        [True, False, True, True, False, True]
        """
        kind, _, rest = stamp.partition(":")
        match kind:
            case "t":
                return rest in self.tables
            case "b":
                return any(table.partition(".")[2].casefold() == rest.casefold() for table in self.tables)
            case "n":
                return rest == self.name
            case "p":
                return self.name.startswith(rest)
            case _:
                return False


def of_tables(tables: Iterable[str]) -> list[str]:
    """Return the stamp names of tables; a name without a schema means every table of that name, in any case."""
    return [f"t:{table}" if "." in table else f"b:{table}" for table in tables]


def qualified(table: str) -> str:
    """
    >>> qualified("orders"), qualified("sales.orders")
    ('public.orders', 'sales.orders')
    """
    return table if "." in table else f"public.{table}"


def fresh() -> str:
    """Return a new unique stamp or version."""
    return secrets.token_hex(8)
