"""Times as Debezium counts them: convert PostgreSQL's text to numbers or ISO 8601, and back.

PostgreSQL's years run from 4713 BC to 294276, beyond the range of datetime, so days are counted here. A value that is
not a time (a mask, an infinity) is returned unchanged.
"""

import re
from typing import Any, Final

DAY: Final = 86_400_000_000
_MONTH: Final = DAY * 36525 // 1200
INFINITIES: Final = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
INFINITE_DATES: Final = {"infinity": -2147472692, "-infinity": -2147472691}
_MOMENT: Final = re.compile(
    r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[T ](?P<time>[0-9:.]+)(?:\+00(?::00)?)?)?(?P<bc> BC)?"
)
_ZONED: Final = re.compile(r"(?P<date>[+-]?[0-9]{4,7}-[0-9]{2}-[0-9]{2})T(?P<time>[0-9:.]+)Z")
_CLOCK: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")
_SPAN: Final = re.compile(r"(-?)([0-9]{2,3}):([0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)")
_DURATION: Final = re.compile(
    r"P(?=.)(?:(-?[0-9]+)Y)?(?:(-?[0-9]+)M)?(?:(-?[0-9]+)D)?"
    r"(?:T(?:(-?[0-9]+)H)?(?:(-?[0-9]+)M)?(?:(-?)([0-9]+)(?:\.([0-9]{1,6}))?S)?)?"
)


def _days(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar; the year 0 is 1 BC.

    >>> _days(1970, 1, 1), _days(2000, 3, 1), _civil(_days(-4712, 2, 29))
    (0, 11017, (-4712, 2, 29))
    """
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


def _civil(days: int) -> tuple[int, int, int]:
    era, day = divmod(days + 719468, 146097)
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day += 1 - (153 * month + 2) // 5
    return year + era * 400 + (month >= 10), (month + 2) % 12 + 1, day


def clock(value: Any) -> Any:
    """Return microseconds since midnight; return a value that is not a time of day unchanged."""
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    hours, minutes, seconds, fraction = match.groups(default="0")
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))


def read_clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def span(value: Any) -> Any:
    """Return the microseconds of MySQL's TIME, which has a sign and up to 838 hours.

    >>> span("-838:59:59.5"), read_span(span("-838:59:59.5")), read_span(span("12:00:00"))
    (-3020399500000, '-838:59:59.5', '12:00:00')
    """
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    sign, hours, rest = match.groups()
    micros = int(hours) * 3_600_000_000 + clock(f"00:{rest}")
    return -micros if sign else micros


def read_span(micros: Any) -> Any:
    if not isinstance(micros, int):
        return micros
    return ("-" if micros < 0 else "") + read_clock(abs(micros))


def moment(value: Any) -> Any:
    """Return microseconds since 1970; return a value that is not a timestamp or date unchanged."""
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    year = int(match["year"])
    days = _days(1 - year if match["bc"] else year, int(match["month"]), int(match["day"]))
    micros = clock(match["time"] or "00:00:00")
    return days * DAY + micros if isinstance(micros, int) else value


def read_date(days: int) -> tuple[str, str]:
    """Return a date as PostgreSQL prints it, and its suffix if it is before the year 1."""
    year, month, day = _civil(days)
    era = " BC" if year <= 0 else ""
    return f"{1 - year if era else year:04}-{month:02}-{day:02}", era


def read_moment(micros: int, zone: str = "") -> str:
    days, time = divmod(micros, DAY)
    date, era = read_date(days)
    return f"{date}T{read_clock(time)}{zone}{era}"


def zoned(value: Any, precision: int) -> Any:
    micros = moment(value)
    if not isinstance(micros, int):
        return value
    days, time = divmod(micros, DAY)
    year, month, day = _civil(days)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    seconds, fraction = divmod(time, 1_000_000)
    decimals = f".{fraction:06}"[: precision + 1] if precision else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}T{read_clock(seconds * 1_000_000)}{decimals}Z"


def read_zoned(value: Any) -> Any:
    match = _ZONED.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    year, month, day = match["date"].rsplit("-", 2)
    micros = clock(match["time"])
    if not isinstance(micros, int):
        return value
    return read_moment(_days(int(year), int(month), int(day)) * DAY + micros, "+00:00")


def interval(value: Any) -> Any:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    years, months, days, hours, minutes, sign, seconds, fraction = match.groups(default="")
    micros = int(seconds or 0) * 1_000_000 + int(fraction.ljust(6, "0"))
    whole_minutes = int(hours or 0) * 60 + int(minutes or 0)
    return (
        (int(years or 0) * 12 + int(months or 0)) * _MONTH
        + int(days or 0) * DAY
        + whole_minutes * 60_000_000
        + (-micros if sign else micros)
    )


def read_interval(micros: Any) -> Any:
    """Return the duration in hours, minutes and seconds: microseconds do not distinguish months and days.

    >>> read_interval(93_784_500_000), read_interval(-1), read_interval(0)
    ('PT26H3M4.5S', 'PT-0.000001S', 'PT0S')
    """
    if not isinstance(micros, int):
        return micros
    sign = "-" if micros < 0 else ""
    minutes, rest = divmod(abs(micros), 60_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    decimals = f".{fraction:06}".rstrip("0") if fraction else ""
    parts = [(minutes // 60, "", "H"), (minutes % 60, "", "M"), (seconds, decimals, "S")]
    text = "".join(f"{sign}{number}{more}{unit}" for number, more, unit in parts if number or more)
    return f"PT{text or '0S'}"
