"""Decode row events: the values of each row of one version of a table.

In: the bytes of an event after its bitmaps. Out: rows, each a dict of all columns in the table's order; values that
were not logged are UNAVAILABLE. The decoders are Python functions generated for the version: straight-line code for a
row without nulls, and adjacent fixed-size columns unpacked at once.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from forge.capture.mysql import binary_json
from forge.capture.mysql import codecs as forms
from forge.capture.mysql.tables import (  # fmt: skip
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATE,
    DATETIME,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    NEWDATE,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TIME,
    TIME2,
    TIMESTAMP,
    TIMESTAMP2,
    TINY,
    VAR_STRING,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    Map,
    MappedColumn,
)
from forge.change import UNAVAILABLE
from forge.errors import DecodeError
from forge.values import Column

Row = dict[str, Any]


class ColumnLayout(NamedTuple):
    """The layout of one column: `fixed` is a format of struct, or None for `prefix` bytes of length and then the value.

    `form` converts what was read to the value; None keeps it. `utf8` marks a text that is decoded in place.
    """

    fixed: str | None
    form: Callable[[Any], Any] | None = None
    prefix: int = 0
    utf8: bool = False
    text: str = ""
    kind: str = "plain"


Charsets = Callable[[str], forms.Charset]


def part(field: MappedColumn, charsets: Charsets) -> ColumnLayout:
    """Return how a column is read, and its name in `Batch.columns`."""
    kind, meta, sign = field.type, field.meta, " unsigned" if field.unsigned else ""
    if kind in (TINY, SHORT, LONG, LONGLONG):
        code = {TINY: "b", SHORT: "h", LONG: "i", LONGLONG: "q"}[kind]
        name = {TINY: "tinyint", SHORT: "smallint", LONG: "int", LONGLONG: "bigint"}[kind]
        return ColumnLayout(code.upper() if field.unsigned else code, text=name + sign)
    if kind == INT24:
        return ColumnLayout("3s", forms.uint if field.unsigned else forms.int24, text="mediumint" + sign)
    if kind == FLOAT:
        return ColumnLayout("4s", forms.real, text="float", kind="float")
    if kind == DOUBLE:
        return ColumnLayout("d", text="double", kind="float")
    if kind == NEWDECIMAL:
        digits, scale = meta >> 8, meta & 255
        size = forms.decimal_size(digits, scale)
        return ColumnLayout(
            f"{size}s", forms.decimal(digits, scale), text=f"decimal({digits},{scale}){sign}", kind="numeric"
        )
    if kind == YEAR:
        return ColumnLayout("B", forms.year, text="year")
    if kind in (DATE, NEWDATE):
        return ColumnLayout("3s", forms.date, text="date")
    if kind in (TIMESTAMP2, DATETIME2, TIME2):
        base, form, name = {
            TIMESTAMP2: (4, forms.timestamp2, "timestamp"),
            DATETIME2: (5, forms.datetime2, "datetime"),
            TIME2: (3, forms.time2, "time"),
        }[kind]
        return ColumnLayout(f"{base + (meta + 1) // 2}s", form, text=f"{name}({meta})" if meta else name)
    if kind in (TIMESTAMP, DATETIME, TIME):
        size, old_form, name = {
            TIMESTAMP: (4, forms.old_timestamp, "timestamp"),
            DATETIME: (8, forms.old_datetime, "datetime"),
            TIME: (3, forms.old_time, "time"),
        }[kind]
        return ColumnLayout(f"{size}s", old_form, text=name)
    if kind == BIT:
        width = (meta & 255) * 8 + (meta >> 8)
        return ColumnLayout(f"{(width + 7) // 8}s", forms.bit(width), text=f"bit({width})")
    if kind in (ENUM, SET):
        decode = charsets(field.charset or "utf8mb4")
        values = field.values or tuple(str(decode(word)) for word in field.raw)
        words = ",".join("'" + word.replace("'", "''") + "'" for word in values)
        if kind == ENUM:
            return ColumnLayout("B" if meta == 1 else "H", forms.chosen(values), text=f"enum({words})")
        return ColumnLayout(f"{meta}s", forms.members(values), text=f"set({words})")
    if kind in (GEOMETRY, VECTOR):
        return ColumnLayout(None, prefix=meta, text="geometry" if kind == GEOMETRY else "vector", kind="bytea")
    if kind == JSON:
        return ColumnLayout(None, binary_json.decoded, prefix=meta, text="json", kind="jsonb")
    return _string(field, charsets)


_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def _string(field: MappedColumn, charsets: Charsets) -> ColumnLayout:
    kind, meta = field.type, field.meta
    binary = field.charset in (None, "binary")
    word = field.known.partition("(")[0].partition(" ")[0]
    if kind == STRING and binary and word in ("uuid", "inet6", "inet4"):
        address = forms.uuid if word == "uuid" else forms.inet(4 if word == "inet4" else 16)
        return ColumnLayout(None, address, 1, text=word)
    if kind in (BLOB, BLOB_COMPRESSED):
        prefix, text = meta, f"{_SIZES.get(meta, '')}{'blob' if binary else 'text'}"
    elif kind == STRING:
        prefix, text = (2 if meta > 255 else 1), ("binary" if binary else "char")
    elif kind in (VARCHAR, VAR_STRING, VARCHAR_COMPRESSED):
        prefix, text = (2 if meta > 255 else 1), ("varbinary" if binary else "varchar")
    else:
        raise DecodeError(
            f"column {field.name!r} has the type {kind}, which this Forge cannot decode", fix="leave its table out"
        )
    compressed = kind in (BLOB_COMPRESSED, VARCHAR_COMPRESSED)
    text = field.known.partition(" ")[0] if field.known.startswith(f"{text}(") else text
    if binary:
        form: forms.Form | None = forms.padded(meta) if kind == STRING else None
        if compressed:
            form = forms.decompressed(bytes)
        return ColumnLayout(None, form, prefix, text=text, kind="bytea")
    charset = charsets(field.charset or "")
    if compressed:
        return ColumnLayout(None, forms.decompressed(charset), prefix, text=text)
    return ColumnLayout(None, charset, prefix, utf8=charset.codec == "utf-8", text=text)


Decode = Callable[[bytes, int, int], list[Row]]


class MysqlTableVersion:
    """One version of a table: its columns, its key, and the decoders of its row events."""

    def __init__(self, made: Map, charsets: Charsets) -> None:
        self.schema = made.schema
        self.table = made.table
        self.fields = made.fields
        self._parts = [part(field, charsets) for field in made.fields]
        self.names = tuple(field.name for field in made.fields)
        self.ends = made.ends if made.ends in self.names else None
        """In a system-versioned table, the column with the end of a row's validity."""
        self.implied = made.implied
        """Invisible columns that the server adds."""
        self.sequence = made.sequence
        """Whether it is a sequence of MariaDB's, whose rows are not table rows."""
        self.key = tuple(self.names[at] for at in made.key or () if self.names[at] != self.ends)
        self.columns = tuple(
            Column(field.name, each.text, each.kind)
            for field, each in zip(made.fields, self._parts, strict=True)
            if field.name not in self.implied
        )
        self._width = (len(self.fields) + 7) // 8
        self._decoders: dict[tuple[bytes, bool], Decode] = {}

    @property
    def width(self) -> int:
        """Return the size in bytes of a bitmap of the columns."""
        return self._width

    def rows(self, present: bytes, data: bytes, at: int, end: int) -> list[Row]:
        """Return the rows of an event whose columns are `present`; other columns are UNAVAILABLE."""
        try:
            return self._decoder(present, quick=True)(data, at, end)
        except UnicodeDecodeError:
            return self._decoder(present, quick=False)(data, at, end)
        except (struct.error, IndexError, ArithmeticError, ValueError) as error:
            raise DecodeError(
                f"a row of {self.schema}.{self.table} in the binary log cannot be decoded: {error}",
                fix="set binlog_row_metadata=FULL, or leave the table out",
            ) from None

    def updates(self, present: bytes, present_after: bytes, data: bytes, at: int, end: int) -> list[Row]:
        """Return the rows of an update, before and after alternating."""
        if present == present_after:
            return self.rows(present, data, at, end)
        one = self._one(present), self._one(present_after)
        found: list[Row] = []
        try:
            while at < end:
                before, at = one[0](data, at)
                after, at = one[1](data, at)
                for name, value in after.items():
                    if value is UNAVAILABLE:
                        after[name] = before[name]
                found += before, after
        except (struct.error, IndexError, ValueError) as error:
            raise DecodeError(
                f"a row of {self.schema}.{self.table} in the binary log cannot be decoded: {error}",
                fix="set binlog_row_image=FULL",
            ) from None
        return found

    def _one(self, present: bytes) -> Callable[[bytes, int], tuple[Row, int]]:
        return compiled(self.names, self._parts, present, quick=False, single=True)

    def _decoder(self, present: bytes, *, quick: bool) -> Decode:
        found = self._decoders.get((present, quick))
        if found is None:
            found = self._decoders[present, quick] = compiled(self.names, self._parts, present, quick=quick)
        return found


def compiled(
    names: Sequence[str], parts: Sequence[ColumnLayout], present: bytes, *, quick: bool, single: bool = False
) -> Callable[..., Any]:
    """Generate, compile and return a function that decodes the rows of an event.

    `quick` decodes UTF-8 in place and fails as a whole if that fails; `single` reads one row and returns where it ends.
    """
    bits = int.from_bytes(present, "little")
    here = [number for number in range(len(names)) if bits >> number & 1]
    scope: dict[str, Any] = {"UNAVAILABLE": UNAVAILABLE, "number": int.from_bytes}
    width = (len(here) + 7) // 8
    nulls = "data[at]" if width == 1 else f"number(data[at:at + {width}], 'little')"
    lines = ["def decode(data, at, end):", "    found = []", "    add = found.append", "    while at < end:"]
    if single:
        lines = ["def decode(data, at):", "    for _ in (1,):"]
    lines += [f"        nulls = {nulls}" if width else "        nulls = 0", f"        at += {width}"]
    lines.append(f"        if not nulls & {(1 << len(here)) - 1}:")
    lines += ["            " + line for line in _straight(here, parts, scope, quick=quick)] or ["            pass"]
    lines.append("        else:")
    for bit, number in enumerate(here):
        lines.append(f"            if nulls & {1 << bit}:")
        lines.append(f"                v{number} = None")
        lines.append("            else:")
        lines += ["                " + line for line in _straight([number], parts, scope, quick=quick)]
    if not here:
        lines.append("            pass")
    row = ", ".join(f"{name!r}: {f'v{n}' if bits >> n & 1 else 'UNAVAILABLE'}" for n, name in enumerate(names))
    if single:
        lines.append(f"    return {{{row}}}, at")
    else:
        lines += [f"        add({{{row}}})", "    if at != end:", "        raise IndexError('it has no end')"]
        lines.append("    return found")
    exec("\n".join(lines), scope)
    decode: Callable[..., Any] = scope["decode"]
    return decode


def _straight(
    numbers: Sequence[int], parts: Sequence[ColumnLayout], scope: dict[str, Any], *, quick: bool
) -> list[str]:
    """Return lines that read these columns, none of them null; adjacent fixed-size columns are unpacked at once."""
    lines: list[str] = []
    run: list[int] = []

    def flush() -> None:
        if not run:
            return
        layout = struct.Struct("<" + "".join(str(parts[number].fixed) for number in run))
        name = f"unpack_{'_'.join(map(str, run[:1]))}_{len(run)}"
        scope[name] = layout.unpack_from
        targets = ", ".join(f"v{number}" for number in run)
        lines.append(f"{targets}, = {name}(data, at)")
        lines.append(f"at += {layout.size}")
        for number in run:
            form = parts[number].form
            if form is not None:
                scope[f"form{number}"] = form
                lines.append(f"v{number} = form{number}(v{number})")
        run.clear()

    for number in numbers:
        each = parts[number]
        if each.fixed is not None:
            run.append(number)
            continue
        flush()
        size = "data[at]" if each.prefix == 1 else f"number(data[at:at + {each.prefix}], 'little')"
        lines.append(f"size = {size}")
        lines.append(f"at += {each.prefix}")
        if each.utf8 and quick:
            value = "data[at:at + size].decode()"
        elif each.form is not None:
            scope[f"form{number}"] = each.form
            value = f"form{number}(data[at:at + size])"
        else:
            value = "data[at:at + size]"
        lines.append(f"v{number} = {value}")
        lines.append("at += size")
    flush()
    return lines
