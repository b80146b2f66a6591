"""Check whether PostgreSQL can store a string unchanged.

>>> check_storable("the key", "4711", None)
>>> check_storable("the key", "a\\0b")
Traceback (most recent call last):
forge.errors.HistoryUnavailable: the key has a NUL character
fix: pass text that PostgreSQL can store
"""

from typing import Any, Final

from forge.errors import ForgeError, HistoryUnavailable

FIX: Final = "pass text that PostgreSQL can store"


def unstorable(value: Any) -> str | None:
    """Name what PostgreSQL cannot store in a text, or in the texts of a JSON value; None if it can store all.

    >>> unstorable("Zoë"), unstorable("a\\0b"), unstorable({"a": ["\\ud800"]})
    (None, 'a NUL character', 'half of a surrogate pair')
    """
    if isinstance(value, str):
        if "\0" in value:
            return "a NUL character"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "half of a surrogate pair"
        return None
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return None
    return next((problem for part in parts if (problem := unstorable(part))), None)


def check_storable(what: str, *texts: str | None, error: type[ForgeError] = HistoryUnavailable) -> None:
    """Raise the error, which does not repeat the text, unless PostgreSQL can store each of them."""
    for text in texts:
        if text is not None and (problem := unstorable(text)):
            raise error(f"{what} has {problem}", fix=FIX)
