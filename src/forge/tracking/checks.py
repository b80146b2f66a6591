"""Check the application's values before they are sent: text and JSON that PostgreSQL can store unchanged."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from forge.errors import ContextError, ForgeError
from forge.postgres.text import FIX, check_storable, unstorable

UserId: TypeAlias = str | int | UUID

LONGEST_USER: Final = 255
LONGEST_FUNCTION: Final = 255
LONGEST_TRACE: Final = 64
MOST_MORE: Final = 8192
"""Maximum size of the JSON in bytes: every log row of the transaction carries it."""


def user_text(value: object) -> str | None:
    """Return the user as text; a number or UUID is accepted too."""
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        value = str(value)
    return text_value("user_id", value, LONGEST_USER)


def function_text(value: object) -> str | None:
    return text_value("function_name", value, LONGEST_FUNCTION)


def trace_text(value: object) -> str | None:
    return text_value("trace_id", value, LONGEST_TRACE)


def text_value(name: str, value: object, longest: int) -> str | None:
    """Return the value if PostgreSQL and the log can store it unchanged."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ContextError(f"{name} is of type {type(value).__name__}", fix=f"pass {name} as text")
    if not value:
        raise ContextError(f"{name} is empty", fix="pass None, or leave it out, where there is none")
    if len(value) > longest:
        raise ContextError(f"{name} has {len(value)} characters; {longest} is the most", fix=f"shorten {name}")
    check_storable(name, value, error=ContextError)
    return value


def json_text(name: str, value: object, error: type[ForgeError]) -> str:
    """Return the value as JSON that a jsonb column can store; raise an error of the given type."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
        found = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        problem = unstorable(plain)
    except (TypeError, ValueError, RecursionError) as reason:
        line = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        raise error(f"{name} is not JSON: {line}", fix="pass numbers, text, lists, dicts, dates and the like") from None
    if problem:
        raise error(f"{name} has {problem}", fix=FIX)
    return found


def more_text(more: Mapping[str, Any]) -> str | None:
    """Return the additional fields as JSON; None if there are none."""
    if not more:
        return None
    for name, value in more.items():
        json_text(name, value, ContextError)
    found = json_text("the context", more, ContextError)
    if (size := len(found.encode())) > MOST_MORE:
        raise ContextError(
            f"the context has {size} bytes; {MOST_MORE} is the most", fix="keep the data in a table and pass its key"
        )
    return found
