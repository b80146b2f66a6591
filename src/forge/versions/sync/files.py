"""Copy in a folder: one file `{id}.json` per document, and the copy's progress in `.forge-sync.json`.

Each file is complete at any moment: it is written under another name and renamed. The state is written after its page,
so an interrupted page is read again. A lock on the folder excludes a second sync.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from forge.errors import DecodeError, MirrorUnusable
from forge.versions.nouns import Deletion, Event, Json, KeyChange, Resource, Upsert, decode, encode
from forge.versions.sync.mirror import MirrorState
from forge.versions.wire import told

STATE: Final = ".forge-sync.json"
_LOCK: Final = ".forge-sync.lock"


class _Kept(msgspec.Struct):
    resource: Resource
    state: MirrorState


class FilesMirror:
    """A copy in a folder, which is created when it is missing."""

    def __init__(self, folder: Path, resource: Resource) -> None:
        self.resource = resource
        self._folder = folder
        with self._errors():
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._kept = self._read()
        except BlockingIOError:
            os.close(self._lock)
            raise MirrorUnusable(f"somebody else keeps the copy in {folder}", fix="run one sync at a time") from None
        except BaseException:
            os.close(self._lock)
            raise

    def state(self) -> MirrorState | None:
        return None if self._kept is None else self._kept.state

    def take(self, events: Sequence[Event], state: MirrorState) -> None:
        with self._errors():
            for event in events:
                self._one(event, state.generation)
            self._keep(state)

    def listed(self, state: MirrorState) -> int:
        removed = 0
        with self._errors():
            for path in self._folder.glob("[0-9]*.json"):
                if _document(path).get("generation") != state.generation:
                    path.unlink()
                    removed += 1
            self._keep(state)
        return removed

    def close(self) -> None:
        os.close(self._lock)

    def _one(self, event: Event, generation: int) -> None:
        path = self._folder / f"{event.id}.json"
        if isinstance(event, Upsert):
            shown = {name: value for name, value in told(event).items() if name != "type"}
            self._write(path, encode({**shown, "generation": generation}))
            return
        if not path.exists() or (document := _document(path))["changeVersion"] > event.version:
            return
        match event:
            case Deletion():
                path.unlink()
            case KeyChange():
                self._write(path, encode({**document, "identity": event.new_identity}))

    def _keep(self, state: MirrorState) -> None:
        kept = _Kept(self.resource, state)
        self._write(self._folder / STATE, msgspec.json.encode(kept).decode())
        self._kept = kept

    def _write(self, path: Path, text: str) -> None:
        beside = path.with_name(f".{path.name}.part")
        beside.write_text(text + "\n", "utf-8")
        beside.replace(path)

    def _read(self) -> _Kept | None:
        path = self._folder / STATE
        if not path.exists():
            return None
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except msgspec.DecodeError as error:
            raise MirrorUnusable(f"{path} is not what a sync wrote: {error}", fix="name an empty folder") from None
        if kept.resource != self.resource:
            raise MirrorUnusable(f"{self._folder} is a copy of {kept.resource}", fix="name another folder")
        return kept

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MirrorUnusable(
                f"no copy can be kept in {self._folder}: {error.strerror}", fix="name a folder that can be written"
            ) from error


def _document(path: Path) -> Json:
    try:
        found = decode(path.read_bytes())
        if isinstance(found.get("changeVersion"), int):
            return found
    except DecodeError:
        pass
    raise MirrorUnusable(f"{path} is not what a sync wrote", fix="name a folder for the copy alone")
