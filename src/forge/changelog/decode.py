"""Decode rows of the log into Changes. This runs once per change, so it is written for speed."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from forge.change import NO_CONTEXT, Change, ChangeSource, Context, Op
from forge.values import Column, Images, too_deep

OPS: Final[dict[str, Op]] = {
    "I": Op.INSERT,
    "U": Op.UPDATE,
    "D": Op.DELETE,
    "T": Op.TRUNCATE,
    "S": Op.SCHEMA,
    "X": Op.INVALIDATE,
    "R": Op.REDACT,
}
SOURCE_KIND: Final = "postgres-log"


class TableVersion(msgspec.Struct, frozen=True):
    """The definition of a table while some rows of the log were written."""

    schema: str
    table: str
    images: Images


class LogDecoder:
    """Decode log rows, as selected by the queries poll and rest, into Changes; it must know the versions they name."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._versions: dict[int, TableVersion] = {}
        self._who: tuple[Any, ...] = (None,) * 6
        self._context = NO_CONTEXT

    def unknown(self, rows: Iterable[tuple[Any, ...]]) -> set[int]:
        """Return the versions that the rows name and that are not known yet."""
        return {row[4] for row in rows} - self._versions.keys()

    def learn(self, version: int, schema: str, table: str, columns: list[Mapping[str, Any]], key: list[str]) -> None:
        """Make a version known."""
        shape = [Column(column["name"], column["type"], column["kind"]) for column in columns]
        self._versions[version] = TableVersion(schema, table, Images(shape, key))

    def columns(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Column, ...]]:
        """Return the columns that each row's table had when the row was written."""
        return [self._versions[row[4]].images.columns for row in rows]

    def changes(self, rows: Iterable[tuple[Any, ...]]) -> list[Change]:
        """Decode the rows into Changes, in the same order."""
        log, versions, ops = self._log, self._versions, OPS
        found = []
        last_xid, transaction = b"", ""
        last_who, context = self._who, self._context
        for row in rows:
            id, place, xid, at, version, op, before, after, hidden = row[:9]
            who = row[9:]
            if who != last_who:
                last_who, context = who, _context(*who)
            if xid != last_xid:
                last_xid, transaction = xid, str(int.from_bytes(xid, "big"))
            known = versions[version]
            images = known.images
            old = new = key = None
            if after is not None:
                new = images.row(after)
                key = images.key(new)
                if before is not None:
                    old = {**new, **images.partial(before)}
            elif before is not None:
                old = images.row(before)
                key = images.key(old)
                if op == "R":  # it names a row, but holds none
                    old = None
            found.append(
                Change(
                    f"{log}:{id}",
                    ops[op],
                    known.schema,
                    known.table,
                    ChangeSource(SOURCE_KIND, log, f"{place}.{id}", transaction),
                    at,
                    key,
                    old,
                    new,
                    context,
                    tuple(hidden) if hidden else (),
                )
            )
        self._who, self._context = last_who, context
        return found


def _context(
    user: str | None, function: str | None, trace: str | None, more: bytes | None, db_user: str | None, app: str | None
) -> Context:
    return Context(user, function, trace, _more(more) if more is not None else {}, db_user, app)


def _more(raw: bytes) -> dict[str, Any]:
    """Decode a writer's context. A bad one must never stop a reader: if it is not an object, return its text."""
    try:
        more = _OBJECT.decode(raw)
        return {"$raw": raw.decode()} if too_deep(more) else more
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {"$raw": raw.decode(errors="replace")}


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
