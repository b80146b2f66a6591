"""Tables as the WAL describes them: build row decoders from a relation message and the catalog.

A row is decoded by a function that is compiled for its table, column by column, because this runs for every change.
What the message lacks comes from the current catalog: the names of types, the columns of the primary key in order, and
columns that are not sent (generated ones). If the table is not in the catalog, or differs there, the identity's columns
are the key.

Three sets of columns matter. The *identity* is what the server sends of the row before: the replica identity. The *key*
is the primary key if the identity has all of it (or is full), else the identity's index, so that inserts, updates and
deletes of a row have the same key. The *sent* are those of the message; any other is UNAVAILABLE.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from forge.capture.wal.protocol import RelationMessage
from forge.capture.wal.texts import decoder, kind_of
from forge.change import UNAVAILABLE, Change, ChangeSource, Op, same
from forge.values import Column

Row = dict[str, Any]

_INLINE: Final = {
    "text": "d[q:p].decode()",
    "int": "int(d[q:p])",
    "bool": "d[q] == 116",
    "float": "float(d[q:p])",
    "timestamp": "d[q:p].decode().replace(' ', 'T', 1)",
    "timestamptz": "d[q:p].decode().replace(' ', 'T', 1).replace('+00', '+00:00', 1)",
}
_EXACT: Final = ("int", "text", "bool", "bytea", "timestamp", "timestamptz")


class Facts(NamedTuple):
    """Catalog data of a table: names and forms of the types, for each column of the message; its primary key; all its
    columns in order; the generated ones."""

    types: Sequence[tuple[str, str]]
    key: Sequence[str] = ()
    columns: Sequence[str] = ()
    generated: Sequence[str] = ()


class WalRelation:
    """One version of one table. `row`, `sized` and `old` decode the tuple whose columns begin at an offset in a
    message.

    `sized` also returns where it ends; `old` knows only the identity's columns, the others of such a tuple are empty.
    """

    row: Callable[[bytes, int], Row]
    sized: Callable[[bytes, int], tuple[Row, int]]
    old: Callable[[bytes, int], tuple[Row, int]]
    key: Callable[[Row], Row | None]
    unchanged: Callable[[Row], Row]
    """Returns what is known of a row before an update that did not change its identity."""
    inserts: Callable[..., tuple[int, bytes, int]]
    """Decodes consecutive inserts of this table: the loop of `Decoder.rows` for most of them."""

    def __init__(self, message: RelationMessage, facts: Facts) -> None:
        self.oid: Final = message.oid
        self.schema: Final = message.schema
        self.table: Final = message.table
        self.full: Final = message.identity == "f"
        identity = [column.name for column in message.columns if column.identity]
        self.digest: Final = digest(
            message.schema, message.table, [(c.name, c.type, c.modifier) for c in message.columns], identity
        )
        sent = {column.name: facts.types[n] for n, column in enumerate(message.columns)}
        known = facts.key if set(facts.key) <= sent.keys() else ()
        self.key_names: Final[tuple[str, ...]] = tuple(_key(message.identity, known, identity))
        names = _names(list(sent), facts)
        self.columns: Final = tuple(
            Column(name, sent[name][0], kind_of(sent[name][1])) if name in sent else Column(name, "", "hidden")
            for name in names
        )
        self.forms: Final = {name: form for name, (_, form) in sent.items()}
        self.sent: Final = tuple(sent)
        self._exact_key = all(self.forms[name] in _EXACT for name in self.key_names)
        _compile(self, [(c.name, facts.types[n][1]) for n, c in enumerate(message.columns)], names, identity)

    def same_key(self, old: Row, new: Row) -> bool:
        """Tell whether an update left the key unchanged; an unknown value counts as unchanged."""
        for name in self.key_names:
            before, after = old[name], new[name]
            if before is UNAVAILABLE or after is UNAVAILABLE:
                continue
            if before != after or not (self._exact_key or same(before, after)):
                return False
        return True

    def from_texts(self, values: Sequence[bytes | None]) -> Row:
        """Decode a row of COPY: the sent columns in their order, None for a null."""
        return self._copied(values)

    _copied: Callable[[Sequence[bytes | None]], Row]


def digest(schema: str, table: str, columns: Sequence[tuple[str, int, int]], identity: Sequence[str]) -> bytes:
    """Return a 6-byte digest that identifies a table's definition. With a different identity, keys may differ."""
    return hashlib.blake2b(repr((schema, table, columns, identity)).encode(), digest_size=6).digest()


def _key(identity: str, primary: Sequence[str], identified: Sequence[str]) -> Sequence[str]:
    if primary and (identity in ("f", "n") or set(primary) <= set(identified)):
        return primary
    return () if identity == "f" else identified


def _names(sent: Sequence[str], facts: Facts) -> Sequence[str]:
    """Return the columns of an image: the sent ones and, in their places, generated ones that are not sent."""
    unsent = [name for name in facts.generated if name not in sent]
    if not unsent or not set(sent) <= set(facts.columns):
        return sent
    wanted = {*sent, *unsent}
    return [name for name in facts.columns if name in wanted]


def _compile(
    relation: WalRelation, sent: Sequence[tuple[str, str]], names: Sequence[str], identity: Sequence[str]
) -> None:
    """Generate the functions of a table as Python code and compile them."""
    scope: dict[str, Any] = {
        "size": struct.Struct(">I").unpack_from,
        "head": struct.Struct(">BI").unpack_from,
        "UNAVAILABLE": UNAVAILABLE,
        "Change": Change,
        "ChangeSource": ChangeSource,
        "INSERT": Op.INSERT,
        **{f"f{n}": decoder(form) for n, (_, form) in enumerate(sent)},
    }
    new = [line for n, (_, form) in enumerate(sent) for line in _column(n, form, len(sent))]
    old = [line for n, (name, form) in enumerate(sent) for line in _column(n, form, len(sent), name in identity)]
    variables = {name: f"v{n}" for n, (name, _) in enumerate(sent)}
    copied = {name: f"None if t[{n}] is None else f{n}(t[{n}])" for n, (name, _) in enumerate(sent)}
    row = _row({name: variables.get(name, "UNAVAILABLE") for name in names})
    key = {name: f"r[{name!r}]" for name in relation.key_names}
    inserted = _row({name: variables[name] for name in relation.key_names}) if key else "None"
    unchanged = {name: f"r[{name!r}]" if name in identity else "UNAVAILABLE" for name in names}
    tag = b"I" + relation.oid.to_bytes(4, "big") + b"N"
    lines = [
        *("def row(d, p):", *new, f"    return {row}"),
        *("def sized(d, p):", *new, f"    return {row}, p"),
        *("def old(d, p):", *old, f"    return {row}, p"),
        *("def key(r):", f"    return {_row(key) if key else None}"),
        *("def unchanged(r):", f"    return {_row(unchanged)}"),
        *("def copied(t):", f"    return {_row({name: copied.get(name, 'UNAVAILABLE') for name in names})}"),
        "def inserts(messages, place, room, last, number, ids, positions, name, xid, at, context, add):",
        "    count = len(messages)",
        "    while place < count:",
        "        d = messages[place]",
        f"        if d[25:31] != {tag!r}:",
        "            break",
        "        lsn = d[1:9]",
        "        if lsn == last:",
        "            number += 1",
        "            word = f'{lsn.hex()}.{number:05d}'",
        "        elif room > 0:",
        "            last, number, word = lsn, 0, lsn.hex()",
        "        else:",
        "            break",
        "        p = 33",
        *(f"    {line}" for line in new),
        f"        add(Change(ids + word, INSERT, {relation.schema!r}, {relation.table!r},",
        f"            ChangeSource('wal', name, positions + word, xid), at, {inserted}, None, {row}, context))",
        "        room -= 1",
        "        place += 1",
        "    return place, last, number",
    ]
    exec("\n".join(lines), scope)
    relation.row, relation.sized, relation.old = scope["row"], scope["sized"], scope["old"]
    relation.key, relation.unchanged, relation._copied = scope["key"], scope["unchanged"], scope["copied"]
    relation.inserts = scope["inserts"]


def _column(n: int, form: str, count: int, known: bool = True) -> list[str]:
    """Return the code that reads one column of a tuple into a variable. A column without a value is skipped."""
    value = _INLINE.get(form, f"f{n}(d[q:p])") if known else "UNAVAILABLE"
    if n + 5 <= count:  # at least four bytes follow its first one, whatever it is
        head = ["    k, s = head(d, p)", "    if k == 116:", "        q = p + 5", "        p = q + s"]
    else:
        head = ["    k = d[p]", "    if k == 116:", "        q = p + 5", "        p = q + size(d, p + 1)[0]"]
    null = "None if k == 110 else UNAVAILABLE" if known else "UNAVAILABLE"
    return [*head, f"        v{n} = {value}", "    else:", f"        v{n} = {null}", "        p += 1"]


def _row(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name!r}: {value}" for name, value in values.items()) + "}"
