"""What the application says while it writes: who and why (`current`, `context`), messages of its own (`notify`), and
every write of its SQLAlchemy engine (`sqlalchemy`).

The package is also the function that users call, `forge.track(engine)`, with its companions `forge.track.create_log`
and `forge.track.recorded`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from forge.errors import TrackingError

_LATER = ("create_log", "recorded")


def __getattr__(name: str) -> Any:
    """What needs SQLAlchemy is imported when it is first asked for."""
    if name in _LATER:
        return getattr(_sqlalchemy(), name)
    raise AttributeError(f"module 'forge.track' has no attribute {name!r}")


def _sqlalchemy() -> ModuleType:
    try:
        return import_module("forge.track.sqlalchemy")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
            raise
        raise TrackingError("SQLAlchemy is not installed", fix='pip install "forge-changes[sqlalchemy]"') from None


class _Track(ModuleType):
    """The package, which can be called; types are those of `forge.track.sqlalchemy.Track`."""

    def __call__(self, target: Any, **options: Any) -> Any:
        return _sqlalchemy().track(target, **options)


sys.modules[__name__].__class__ = _Track
