"""Decode the bytes of a value in a row event to the value of a Change; exact, and without a server.

Each function here takes the bytes of one value in the binary log and returns the form that `forge.capture.mysql`
states. `texts` converts the texts of a query to the same forms.
"""

import codecs
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from forge.change import JSON_NULL
from forge.errors import DecodeError

Form = Callable[[bytes], Any]

_EPOCH = datetime(1970, 1, 1)


def int24(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def uint(data: bytes) -> int:
    return int.from_bytes(data, "little")


@lru_cache(4096)
def real(data: bytes) -> float:
    """Decode a 4-byte float to the one that its shortest text names.

    >>> import struct
    >>> [real(struct.pack("<f", value)) for value in (0.1, 16777216.0, -0.0, 3.4028234663852886e38)]
    [0.1, 16777216.0, -0.0, 3.4028235e+38]
    """
    (wide,) = struct.unpack("<f", data)
    for digits in (6, 7, 8, 9):
        short = float(f"{wide:.{digits}g}")
        if abs(short) <= 3.4028235677973366e38 and struct.pack("<f", short) == data:
            return short
    return float(wide)


def year(value: int) -> int:
    return value + 1900 if value else 0


@lru_cache(4096)
def date(data: bytes) -> str:
    """
    >>> date((2026 << 9 | 1 << 5 | 31).to_bytes(3, "little")), date(bytes(3))
    ('2026-01-31', '0000-00-00')
    """
    value = int.from_bytes(data, "little")
    return f"{value >> 9:04d}-{value >> 5 & 15:02d}-{value & 31:02d}"


def _fraction(data: bytes) -> str:
    """Return the digits after the point in 0 to 3 bytes, as PostgreSQL prints them: without trailing zeros."""
    if not data:
        return ""
    digits = f"{int.from_bytes(data, 'big'):0{2 * len(data)}d}".rstrip("0")
    return f".{digits}" if digits else ""


@lru_cache(4096)
def datetime2(data: bytes) -> str:
    value = int.from_bytes(data[:5], "big") - 0x8000000000
    year, month = divmod(value >> 22, 13)
    return (
        f"{year:04d}-{month:02d}-{value >> 17 & 31:02d}"
        f"T{value >> 12 & 31:02d}:{value >> 6 & 63:02d}:{value & 63:02d}{_fraction(data[5:])}"
    )


@lru_cache(4096)
def timestamp2(data: bytes) -> str:
    """
    >>> timestamp2(bytes.fromhex("6919c0de") + b"\\x32"), timestamp2(bytes(4))
    ('2025-11-16T12:17:34.5+00:00', '0000-00-00T00:00:00+00:00')
    """
    return _instant(int.from_bytes(data[:4], "big"), data[4:])


def _instant(seconds: int, fraction: bytes = b"") -> str:
    if not seconds and not any(fraction):
        return "0000-00-00T00:00:00+00:00"
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}{_fraction(fraction)}+00:00"


@lru_cache(4096)
def time2(data: bytes) -> str:
    """
    >>> time2((0x800000 + (838 << 12 | 59 << 6 | 59)).to_bytes(3, "big"))
    '838:59:59'
    >>> time2((0x80000000 - ((1 << 12 | 2 << 6 | 3) << 8 | 50)).to_bytes(4, "big"))
    '-01:02:03.5'
    """
    size = 8 * (len(data) - 3)
    value = int.from_bytes(data, "big") - (0x800000 << size)
    whole = abs(value)
    clock = whole >> size
    fraction = _fraction((whole & (1 << size) - 1).to_bytes(len(data) - 3, "big"))
    sign = "-" if value < 0 else ""
    return f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}{fraction}"


def old_timestamp(data: bytes) -> str:
    return _instant(int.from_bytes(data, "little"))


def old_time(data: bytes) -> str:
    value = int.from_bytes(data, "little", signed=True)
    hours, rest = divmod(abs(value), 10000)
    return f"{'-' if value < 0 else ''}{hours:02d}:{rest // 100:02d}:{rest % 100:02d}"


def old_datetime(data: bytes) -> str:
    day, clock = divmod(int.from_bytes(data, "little"), 1000000)
    return (
        f"{day // 10000:04d}-{day // 100 % 100:02d}-{day % 100:02d}"
        f"T{clock // 10000:02d}:{clock // 100 % 100:02d}:{clock % 100:02d}"
    )


_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Number of bytes for a number of digits of a decimal."""


def decimal_size(precision: int, scale: int) -> int:
    """
    >>> decimal_size(10, 2), decimal_size(65, 30)
    (5, 30)
    """
    whole = precision - scale
    return whole // 9 * 4 + _BYTES[whole % 9] + scale // 9 * 4 + _BYTES[scale % 9]


def decimal(precision: int, scale: int) -> Form:
    """
    >>> [decimal(10, 2)(bytes.fromhex(text)) for text in ("8000000c1e", "7ffffff3e1", "8000000000")]
    [Decimal('12.30'), Decimal('-12.30'), Decimal('0.00')]
    """
    size = decimal_size(precision, scale)
    whole = precision - scale
    head, tail = _BYTES[whole % 9], _BYTES[scale % 9]
    point = head + whole // 9 * 4
    flip = (1 << 8 * size) - 1
    top = 1 << 8 * size - 1
    groups = [(at, at + 4) for at in range(head, point, 4)]
    fraction_groups = [(at, at + 4) for at in range(point, size - tail, 4)]
    rest = scale % 9

    def read(data: bytes) -> Decimal:
        value = int.from_bytes(data, "big")
        sign = ""
        if value & top:
            data = (value ^ top).to_bytes(size, "big")
        else:
            sign = "-"
            data = (value ^ flip ^ top).to_bytes(size, "big")
        text = str(int.from_bytes(data[:head], "big")) if head else "0"
        for start, end in groups:
            text += f"{int.from_bytes(data[start:end], 'big'):09d}"
        if scale:
            text += "."
            for start, end in fraction_groups:
                text += f"{int.from_bytes(data[start:end], 'big'):09d}"
            if rest:
                text += f"{int.from_bytes(data[size - tail :], 'big'):0{rest}d}"
        return Decimal(sign + text)

    return lru_cache(4096)(read)


def bit(width: int) -> Form:
    """
    >>> bit(10)(b"\\x02\\x05")
    '1000000101'
    """

    def read(data: bytes) -> str:
        return f"{int.from_bytes(data, 'big'):0{width}b}"

    return read


def chosen(values: Sequence[str]) -> Callable[[int], str]:
    """Return the text of an enum by its number; 0 is the empty text of an invalid value."""
    names = ("", *values)

    def read(number: int) -> str:
        return names[number]

    return read


def members(values: Sequence[str]) -> Form:
    """
    >>> members(("a", "b", "c"))(b"\\x05")
    'a,c'
    """

    def read(data: bytes) -> str:
        mask = int.from_bytes(data, "little")
        return ",".join(name for number, name in enumerate(values) if mask >> number & 1)

    return read


def padded(size: int) -> Form:
    """Decode BINARY(n): the log omits its trailing zeros."""
    return lambda data: data.ljust(size, b"\0")


def uuid(data: bytes) -> str:
    """Decode MariaDB's UUID, which the log has in the printed order."""
    text = data.ljust(16, b"\0").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def inet(size: int) -> Form:
    """Decode MariaDB's INET4 and INET6."""
    import ipaddress

    def read(data: bytes) -> str:
        data = data.ljust(size, b"\0")
        if size == 4:
            return str(ipaddress.IPv4Address(data))
        if data[:12] == bytes(10) + b"\xff\xff":
            return f"::ffff:{ipaddress.IPv4Address(data[12:])}"
        if not any(data[:12]) and any(data[12:14]):
            return f"::{ipaddress.IPv4Address(data[12:])}"
        return str(ipaddress.IPv6Address(data))

    return read


def decompressed(inner: Form) -> Form:
    """Decode the value of a column that MariaDB stores COMPRESSED."""

    def read(data: bytes) -> Any:
        if not data or data[0] == 0:
            return inner(data[1:])
        length = data[0] & 7
        bits = -15 if data[0] & 8 else 15
        try:
            return inner(zlib.decompress(data[1 + length :], bits))
        except zlib.error as error:
            raise DecodeError(f"a compressed value cannot be decoded: {error}", fix="check the server's log") from None

    return read


class Charset:
    """Decodes texts of one character set to str; bytes that are no text in it stay bytes.

    `table` has the 256 characters of a single-byte set, as the server itself converts them.
    """

    def __init__(self, name: str, table: str | None = None) -> None:
        self.name = name
        self._table = table
        self.codec = _CODECS.get(name)

    def __call__(self, data: bytes) -> str | bytes:
        try:
            if self._table is not None:
                return codecs.charmap_decode(data, "strict", self._table)[0]
            if self.codec is not None:
                return data.decode(self.codec)
        except UnicodeDecodeError:
            pass
        return data


_CODECS = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ascii": "ascii",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "big5": "big5",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "euckr": "euc_kr",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
}


def json_text(text: str) -> Any:
    """Parse the text of MySQL's JSON: int for whole numbers, Decimal for others; JSON_NULL for null at the top."""
    value = json.loads(text, parse_float=Decimal)
    return JSON_NULL if value is None else value


def utc(seconds: int) -> datetime:
    return _utc(seconds)


@lru_cache(64)
def _utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
