"""Sizes, days and durations as people write them: 10GB, 2w, 500ms. Parse them and print them."""

import re


def size(value: str) -> int | None:
    """Bytes of a size such as 10GB or 512 MB, in units of 1024 as PostgreSQL counts; None for anything else.

    >>> size("10GB"), size("512 mb"), size("1024"), size("ten")
    (10737418240, 536870912, 1024, None)
    """
    match = re.fullmatch(r"\s*(\d{1,18})\s*([kmgt]?)i?b?\s*", value, re.IGNORECASE)
    return int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else None


def shown_size(count: float) -> str:
    """
    >>> shown_size(0), shown_size(1536), shown_size(10 * 1024**3)
    ('0 bytes', '1.5 kB', '10 GB')
    """
    if count < 1024:
        return f"{count:g} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count / 1024:.1f}".removesuffix(".0") + " TB"


def days(value: str) -> int | None:
    """Whole days of a text such as 30, 30d or 2w; None for anything else.

    >>> days("30d"), days("2w"), days("7"), days("1h")
    (30, 14, 7, None)
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*(d|days?|w|weeks?)?\s*", value, re.IGNORECASE)
    return int(match[1]) * (7 if (match[2] or "d").lower().startswith("w") else 1) if match else None


def seconds(value: str) -> float | None:
    """Seconds of a text such as 500ms, 10s, 5m or 1h; None for anything else.

    >>> seconds("500ms"), seconds("10s"), seconds("5m"), seconds("2"), seconds("soon")
    (0.5, 10.0, 300.0, 2.0, None)
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h)?\s*", value, re.IGNORECASE)
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return float(match[1]) * units[(match[2] or "s").lower()] if match else None


def shown_seconds(value: float) -> str:
    """A duration as `seconds` reads it.

    >>> shown_seconds(0.05), shown_seconds(10), shown_seconds(90), shown_seconds(600), shown_seconds(1.5)
    ('50ms', '10s', '90s', '10m', '1.5s')
    """
    for unit, length in (("h", 3600), ("m", 60)):
        if value >= length and value % length == 0:
            return f"{value / length:.9g}{unit}"
    return f"{value:.9g}s" if value >= 1 else f"{value * 1000:.9g}ms"
