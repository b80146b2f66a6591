"""Configuration: the settings and their tables, read from forge.toml, the environment and flags.

`forge.config.tables` declares every setting once, `load` reads them, and `in_force` lets what code says explicitly win
over them: default < forge.toml < environment < flag or explicit argument.
"""

from forge.config.defaults import default, in_force
from forge.config.kinds import Wakeup
from forge.config.loader import described, load, nearest, url_source
from forge.config.tables import SETTINGS, TABLES, Config
from forge.config.units import days, seconds, shown_seconds, shown_size, size
from forge.config.urls import database_kind, hide

__all__ = [
    "SETTINGS",
    "TABLES",
    "Config",
    "Wakeup",
    "database_kind",
    "days",
    "default",
    "described",
    "hide",
    "in_force",
    "load",
    "nearest",
    "seconds",
    "shown_seconds",
    "shown_size",
    "size",
    "url_source",
]
