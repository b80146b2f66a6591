"""Record the actor and reason of writes in the log, and record the writes of SQLAlchemy engines.

`current` and `context` carry the user, `notify` and `outbox` send messages in the writer's transaction, `sqlalchemy`
records the writes of an engine passed to `forge.track`.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from forge.errors import TrackingError

_LATER = ("create_log", "on_change", "recorded", "track")


def __getattr__(name: str) -> Any:
    """Import the names that need SQLAlchemy on first use."""
    if name in _LATER:
        return getattr(_sqlalchemy(), name)
    raise AttributeError(f"module 'forge.tracking' has no attribute {name!r}")


def _sqlalchemy() -> ModuleType:
    try:
        return import_module("forge.tracking.sqlalchemy")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sqlalchemy":
            raise
        raise TrackingError("SQLAlchemy is not installed", fix='pip install "forge-changes[sqlalchemy]"') from None
