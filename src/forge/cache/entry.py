"""What a cache holds: an answer, what it depends on, and the snapshot at which it was computed.

An entry is worth nothing by itself. Whether it may be shown is decided each time, by whoever shows it: see
`forge.cache.validity`. So a store may lose entries, bring back old ones or be shared by any number of nodes.

*Stamps* are how entries are invalidated by hand, and where no log tells of writes. A stamp is a random text under the
name of a table, of an entry, or of a prefix of such names; whoever invalidates writes another one. An entry has the
stamps that were there before it was computed, and is void when one that concerns it is another now. All stamps are
void with their `epoch`, so a store that lost them has lost its entries too.
"""

import secrets
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

EPOCH: Final = ""
"""The name under which the epoch stands among the stamps."""

Stamps = Mapping[str, str]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An answer. `snapshot` is empty where no log tells of writes; `tables` are `schema.table`."""

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
        """About how many bytes it takes."""
        return len(self.value) + len(self.reads) + 500

    def stands(self, stamps: Stamps) -> bool:
        """Whether nothing that concerns it was invalidated since it was computed."""
        if stamps.get(EPOCH) != self.stamps.get(EPOCH):
            return False
        return all(self.stamps.get(name) == stamp for name, stamp in stamps.items() if self.concerned(name))

    def concerned(self, stamp: str) -> bool:
        """Whether a stamp of this name is about it.

        >>> entry = Entry("", "", "", "top/7", ("public.orders",), {}, b"", "")
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
    """The names of the stamps of tables; a name without a schema is of every table of that name, in any letters."""
    return [f"t:{table}" if "." in table else f"b:{table}" for table in tables]


def qualified(table: str) -> str:
    """
    >>> qualified("orders"), qualified("sales.orders")
    ('public.orders', 'sales.orders')
    """
    return table if "." in table else f"public.{table}"


def fresh() -> str:
    """A stamp, or a version, unlike any other."""
    return secrets.token_hex(8)
