"""Read a Delta table on the local disk without Spark: its files, their sizes and row counts, from its log.

Input: the folder of a table. Output: the files of its newest version. Each read of the log continues at the last
position. Only what Delta writes by default is read: commits in JSON, and the checkpoints that replace removed commits.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from forge.errors import LakeError

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = "{version:020}.checkpoint*.parquet"


class _Stats(msgspec.Struct):
    numRecords: int = 0
    maxValues: dict[str, Any] = {}


class _Vector(msgspec.Struct):
    storageType: str
    pathOrInlineDv: str
    offset: int | None = None
    cardinality: int = 0


class _File(msgspec.Struct):
    path: str
    size: int | None = None
    stats: str | None = None
    deletionVector: _Vector | None = None

    @property
    def id(self) -> tuple[Any, ...]:
        """The identity of a file; the same file with another deletion vector is another file."""
        vector = self.deletionVector
        return self.path, vector and (vector.storageType, vector.pathOrInlineDv, vector.offset)


class _Action(msgspec.Struct):
    add: _File | None = None
    remove: _File | None = None


class _Last(msgspec.Struct):
    version: int


class DeltaFile(msgspec.Struct, frozen=True):
    """A file of a table; `rows` excludes deleted rows, `most` has the greatest values of its columns."""

    path: Path
    bytes: int
    rows: int
    most: dict[str, Any]


class DeltaTable:
    """One table, and the position up to which its log was read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "_delta_log"
        self._version = -1
        self._files: dict[tuple[Any, ...], DeltaFile] = {}

    def files(self) -> list[DeltaFile]:
        """Return the files of the newest version; empty if there is no table."""
        commits = {int(match[1]): path for path in self._listed() if (match := _COMMIT.fullmatch(path.name))}
        newer = sorted(version for version in commits if version > self._version)
        if newer and newer[0] != self._version + 1:
            self._begin_anew(commits)
            newer = sorted(version for version in commits if version > self._version)
        for version in newer:
            self._apply(map(_action.decode, commits[version].read_bytes().splitlines()))
            self._version = version
        return list(self._files.values())

    def rows(self, columns: list[str], files: Iterable[DeltaFile]) -> Iterator[dict[str, Any]]:
        """Yield the rows of some of its files."""
        for file in files:
            yield from _parquet(file.path, columns)

    def _listed(self) -> Iterable[Path]:
        return self._log.iterdir() if self._log.is_dir() else ()

    def _begin_anew(self, commits: Iterable[int]) -> None:
        """Start again from a checkpoint: the commits before it were removed."""
        try:
            last = msgspec.json.decode((self._log / "_last_checkpoint").read_bytes(), type=_Last)
        except (OSError, msgspec.DecodeError):
            raise LakeError(f"the log of {self._folder.name} cannot be read", fix="forge pipeline status") from None
        self._files.clear()
        for part in sorted(self._log.glob(_CHECKPOINT.format(version=last.version))):
            for row in _parquet(part, ["add"]):
                if row["add"] is not None:
                    self._apply([_Action(add=msgspec.convert(row["add"], _File))])
        self._version = last.version
        if self._version + 1 not in commits and any(version > self._version for version in commits):
            raise LakeError(f"the log of {self._folder.name} has a gap", fix="forge pipeline status")

    def _apply(self, actions: Iterable[_Action]) -> None:
        for action in actions:
            if action.remove is not None:
                self._files.pop(action.remove.id, None)
            if action.add is not None:
                self._files[action.add.id] = self._file(action.add)

    def _file(self, added: _File) -> DeltaFile:
        stats = msgspec.json.decode(added.stats or "{}", type=_Stats)
        gone = 0 if added.deletionVector is None else added.deletionVector.cardinality
        path = self._folder / unquote(added.path)
        return DeltaFile(path, added.size or 0, max(0, stats.numRecords - gone), stats.maxValues)


_action: Final = msgspec.json.Decoder(_Action)


def _parquet(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise LakeError("pyarrow is not installed", fix="pip install 'forge-changes[pipeline]'") from None
    with ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        rows = file.read(columns=columns).to_pylist()
    return [{name: _in_utc(value) for name, value in row.items()} for row in rows]


def _in_utc(value: Any) -> Any:
    """Set UTC on a time: Spark's times are in UTC but carry no time zone."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
