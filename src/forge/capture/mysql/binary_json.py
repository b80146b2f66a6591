"""Decode MySQL's binary JSON, as in row events, to int, Decimal, str, bool, list, dict; JSON_NULL at the top.

A value is a type byte and its data. An object or array begins with its number of members and its size, then entries of
keys (offset and length) and of values (type, and offset or the value itself); sizes and offsets have 2 bytes in the
small form and 4 in the large one, and count from the start of the object or array.

>>> decoded(bytes.fromhex("00 0100 0c00 0b00 0100 050700 61"))
{'a': 7}
>>> decoded(b"\\x04\\x00")
JSON_NULL
"""

import struct
from decimal import Decimal
from typing import Any

from forge.capture.mysql import codecs as forms
from forge.change import JSON_NULL
from forge.errors import DecodeError

_LITERALS = {0: None, 1: True, 2: False}
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}


def decoded(data: bytes) -> Any:
    """Decode a whole value; empty data, which MySQL writes for a null that was never set, is JSON null."""
    if not data:
        return JSON_NULL
    try:
        value = _value(data[0], data, 1)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise DecodeError(f"a JSON value in the binary log cannot be decoded: {error}", fix="report it") from None
    return JSON_NULL if value is None else value


def _value(kind: int, data: bytes, at: int) -> Any:
    if kind < 4:
        return _container(data, at, large=bool(kind & 1), keyed=kind < 2)
    if kind == 4:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return struct.unpack_from(_NUMBERS[kind], data, at)[0]
    if kind == 11:
        return Decimal(repr(struct.unpack_from("<d", data, at)[0]))
    if kind == 12:
        size, at = _size(data, at)
        return data[at : at + size].decode()
    if kind == 15:
        field = data[at]
        size, at = _size(data, at + 1)
        return _opaque(field, data[at : at + size])
    raise KeyError(f"type {kind}")


def _container(data: bytes, start: int, *, large: bool, keyed: bool) -> Any:
    number, width = ("<I", 4) if large else ("<H", 2)
    (count,) = struct.unpack_from(number, data, start)
    at = start + 2 * width
    keys = []
    if keyed:
        for _ in range(count):
            (offset,) = struct.unpack_from(number, data, at)
            (length,) = struct.unpack_from("<H", data, at + width)
            keys.append(data[start + offset : start + offset + length].decode())
            at += width + 2
    values = []
    for _ in range(count):
        kind = data[at]
        inline = kind in (4, 5, 6) or (large and kind in (7, 8))
        if inline:
            values.append(_value(kind, data, at + 1))
        else:
            values.append(_value(kind, data, start + struct.unpack_from(number, data, at + 1)[0]))
        at += 1 + width
    return dict(zip(keys, values, strict=True)) if keyed else values


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Return a length, stored as 7 bits per byte, the lowest first, and where the measured data begins."""
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return size, at
        shift += 7


def _opaque(field: int, data: bytes) -> Any:
    """Return a value of a type that JSON lacks, as MySQL prints it; bytes as MySQL's `base64:type…:…`."""
    if field == 246:
        return forms.decimal(data[0], data[1])(data[2:])
    if field in (7, 10, 11, 12):
        packed = int.from_bytes(data[:8], "little", signed=True)
        sign, whole = ("-", -packed) if packed < 0 else ("", packed)
        clock, fraction = whole >> 24, whole & 0xFFFFFF
        if field == 11:
            return f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{fraction:06d}"
        year, month = divmod(clock >> 22, 13)
        day = f"{year:04d}-{month:02d}-{clock >> 17 & 31:02d}"
        if field == 10:
            return day
        return f"{day} {clock >> 12 & 31:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{fraction:06d}"
    import base64

    return f"base64:type{field}:{base64.b64encode(data).decode()}"
