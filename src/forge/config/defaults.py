"""Defaults that the configuration may replace, told apart from the same values given in code.

    class Limits(msgspec.Struct):
        sessions_per_user: int = default("realtime.max_sessions_per_user")

`Limits()` leaves the limit to the configuration, `Limits(sessions_per_user=8)` does not: `in_force` replaces the first
and keeps the second.
"""

from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from forge.config.tables import Config

T = TypeVar("T")


class Default:
    """Mixed into the type of a value that is the default of a setting."""

    setting: str


class _Int(int, Default): ...


class _Float(float, Default): ...


class _Str(str, Default): ...


class _Tuple(tuple[Any, ...], Default): ...


_KINDS: Final[dict[type, type[Any]]] = {int: _Int, float: _Float, str: _Str, tuple: _Tuple}
_DEFAULTS: Final = Config()


def default(setting: str) -> Any:
    """The default of a setting, for a parameter or field that the configuration decides where code does not.

    >>> default("serve.connections")
    16
    """
    value = attrgetter(setting)(_DEFAULTS)
    marked = _KINDS[type(value)](value)
    marked.setting = setting
    return marked


def in_force(value: T, config: Config) -> T:
    """The value, with each default in it replaced by the configured value.

    >>> config = Config(wakeup="poll")
    >>> in_force(default("wakeup"), config), in_force("auto", config)
    ('poll', 'auto')
    """
    if isinstance(value, Default):
        configured: T = attrgetter(value.setting)(config)
        return configured
    if isinstance(value, msgspec.Struct):
        before = {name: getattr(value, name) for name in value.__struct_fields__}
        after = {name: in_force(field, config) for name, field in before.items()}
        changed = {name: field for name, field in after.items() if field is not before[name]}
        return msgspec.structs.replace(value, **changed) if changed else value
    return value
