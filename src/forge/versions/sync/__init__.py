"""Copies of a resource, maintained by change queries alone: a source in, a mirror that equals it out.

`forge.versions.sync.http.HttpSource` is imported from there: it needs the extra `client`.
"""

from forge.errors import MirrorUnusable
from forge.versions.sync.client import Synced, SyncProgress, sync
from forge.versions.sync.files import FilesMirror
from forge.versions.sync.mirror import Mirror, MirrorState
from forge.versions.sync.source import DatabaseSource, Reach, VersionsSource
from forge.versions.sync.sqlite import SqliteMirror

__all__ = [
    "DatabaseSource",
    "FilesMirror",
    "Mirror",
    "MirrorState",
    "MirrorUnusable",
    "Reach",
    "SqliteMirror",
    "SyncProgress",
    "Synced",
    "VersionsSource",
    "sync",
]
