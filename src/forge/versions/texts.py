"""What may be written: JSON and texts that PostgreSQL keeps as they were given, and that everybody can read again.

In comes a value, out comes the text that is sent. Refused by name, before anything is written: what is no object; NaN
and Infinity, which JSON does not have; U+0000 and halves of surrogate pairs, which no text of PostgreSQL has; and what
a reader would not take: numbers of more than 4,000 digits, and what lies more than 100 levels deep, which is far from
where Python's stack ends for anybody. What is written by SQL is held to the same by a trigger: forge_versions.unfit.

>>> json_of({"weight": 1.5}, "body")
'{"weight":1.5}'
>>> json_of({"weights": [1, float("nan")]}, "body")
Traceback (most recent call last):
    ...
forge.versions.errors.DocumentInvalid: the body cannot be written: nan is no number of JSON
fix: leave it out, or write null
"""

import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, Final

from forge.postgres.text import unstorable
from forge.versions.errors import DocumentInvalid
from forge.versions.nouns import encode

LARGEST_ID: Final = 2**63 - 1
LEVELS: Final = 100
"""How many names and places there are at the most on the way to a value."""
DIGITS: Final = 4000
"""Of a number, before the point: some below the 4300 that Python reads."""
_BEYOND: Final = 10**DIGITS


def json_of(value: Mapping[str, Any], what: str) -> str:
    """An object as text; `what` it is, the error says."""
    if not isinstance(value, Mapping):
        raise _invalid(what, f"it is a {type(value).__name__}, not an object", "give a mapping of names to values")
    try:
        _check(value, what)
        return encode(value)
    except RecursionError:
        raise _invalid(what, "it is nested too deeply", "make it flatter") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise _invalid(what, str(error)[:200], "give numbers, texts, lists and objects") from error


def text_of(value: str, what: str) -> str:
    """A name, as it is."""
    if not value:
        raise _invalid(what, "it is empty", "give a text")
    _check(value, what)
    return value


def names_of(names: Collection[str]) -> frozenset[str]:
    """The names of references in an identity; one text is not several."""
    if isinstance(names, str):
        raise DocumentInvalid(
            f"in_identity is the text {names!r}, not names of references", fix=f"write in_identity={{{names!r}}}"
        )
    return frozenset(names)


def _check(value: Any, what: str, level: int = 0) -> None:
    if level > LEVELS:
        raise _invalid(what, f"it is nested deeper than {LEVELS} levels", "make it flatter")
    if isinstance(value, str):
        if problem := unstorable(value):
            raise _invalid(what, f"a text in it has {problem}", "leave it out, or decode it with the right encoding")
    elif isinstance(value, Mapping):
        for name, one in value.items():
            _check(name, what)
            _check(one, what, level + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            _check(one, what, level + 1)
    elif (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, Decimal) and not value.is_finite()
    ):
        raise _invalid(what, f"{value} is no number of JSON", "leave it out, or write null")
    elif (isinstance(value, int) and not -_BEYOND < value < _BEYOND) or (
        isinstance(value, Decimal) and value.adjusted() >= DIGITS
    ):
        raise _invalid(what, f"a number in it has more than {DIGITS:,} digits", "write it as a text")


def _invalid(what: str, why: str, fix: str) -> DocumentInvalid:
    return DocumentInvalid(f"the {what} cannot be written: {why}", fix=fix)
