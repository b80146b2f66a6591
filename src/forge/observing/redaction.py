"""Redaction of parameters for display: types, or values if a subscription asks for them.

Invariants, for every subscription:
- A value under a name that sounds like a secret is never shown.
- A value without a name is never shown in a statement that contains such a word.
- A value whose type is not a plain one is never shown.
"""

import re
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

Shown = Mapping[str, Any] | tuple[Any, ...] | None

SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|api_?key|private_?key|credential|authorization|cookie|session_?(?:id|key)|\bpin\b"
    r"|_pin\b|\bcvv|\bcvc|iban|card_?n|ssn|otp\b|salt\b|(?:password|pwd|token)_?hash",
    re.IGNORECASE,
)
_PLAIN: Final = (str, int, float, Decimal, date, time, timedelta, UUID)
REDACTED: Final = "<redacted>"


def shown(sql: str, params: Any, *, values: bool) -> Shown:
    """Return one parameter set for display.

    >>> shown("…", {"id": 7, "password": "x"}, values=False)
    {'id': '<int>', 'password': '<redacted>'}
    >>> shown("…", {"id": 7, "api_token": "x"}, values=True)
    {'id': 7, 'api_token': '<redacted>'}
    >>> shown("UPDATE users SET password = ? WHERE id = ?", ("x", 7), values=True)
    ('<redacted>', '<redacted>')
    """
    if params is None:
        return None
    if isinstance(params, Mapping):
        return {
            str(name): REDACTED if SECRET.search(str(name)) else _shown(value, values) for name, value in params.items()
        }
    if not isinstance(params, (list, tuple)):
        return (_shown(params, False),)
    if values and SECRET.search(sql):
        return (REDACTED,) * len(params)
    return tuple(_shown(value, values) for value in params)


def _shown(value: Any, values: bool) -> Any:
    if value is None:
        return None
    if not values:
        return f"<{type(value).__name__}>"
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_shown(inner, True) for inner in value]
    if isinstance(value, dict):
        return shown("", value, values=True)
    return f"<{type(value).__name__}>"
