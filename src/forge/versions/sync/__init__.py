"""Copies of a resource, maintained by change queries alone: a source in, a mirror that equals it out.

`forge.versions.sync.http.HttpSource` is imported from there: it needs the extra `client`.
"""

from forge.errors import MirrorUnusable
from forge.versions.sync.client import Progress, Synced, sync
from forge.versions.sync.files import FilesMirror
from forge.versions.sync.mirror import Mirror, State
from forge.versions.sync.source import DatabaseSource, Reach, Source
from forge.versions.sync.sqlite import SqliteMirror

__all__ = [
    "DatabaseSource",
    "FilesMirror",
    "Mirror",
    "MirrorUnusable",
    "Progress",
    "Reach",
    "Source",
    "SqliteMirror",
    "State",
    "Synced",
    "sync",
]
