"""Validate JSON and texts before writing: PostgreSQL must store them unchanged and every client must be able to read
them.

The input is a value, the output is the text to send. Refused with an error, before anything is written: values that are
not objects; NaN and Infinity, which JSON lacks; U+0000 and lone surrogates, which PostgreSQL's text lacks; and values
that a reader would refuse: numbers of more than 4,000 digits, and nesting of more than 100 levels, which is far below
the limit of Python's stack. A trigger applies the same rules to writes by SQL: forge_versions.unfit.

>>> json_of({"weight": 1.5}, "body")
'{"weight":1.5}'
>>> json_of({"weights": [1, float("nan")]}, "body")
Traceback (most recent call last):
    ...
forge.errors.DocumentInvalid: the body cannot be written: nan is no number of JSON
fix: leave it out, or write null
"""

import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, Final

from forge.errors import DocumentInvalid
from forge.postgres.text import unstorable
from forge.versions.nouns import encode

LARGEST_ID: Final = 2**63 - 1
LEVELS: Final = 100
"""The maximum number of names and indexes on the path to a value."""
DIGITS: Final = 4000
"""The maximum number of digits before the point: below the 4300 that Python reads."""
_BEYOND: Final = 10**DIGITS


def json_of(value: Mapping[str, Any], what: str) -> str:
    """Return an object as JSON text; `what` names it in the error."""
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
    """Return a name unchanged, if it is valid."""
    if not value:
        raise _invalid(what, "it is empty", "give a text")
    _check(value, what)
    return value


def names_of(names: Collection[str]) -> frozenset[str]:
    """Return the names of references in an identity; a single text is refused."""
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
