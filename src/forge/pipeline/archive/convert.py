"""Convert the content of a line to a row of the frame CHANGES, with the definition to read it by.

This code runs in Spark's workers, in two passes over an archive: first a survey, which collects what the conversion
needs from all lines (missing definitions, the encoding of decimals), then the conversion.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import Any, Final, NamedTuple

import msgspec

from forge.change import UNAVAILABLE, Change, Op, same
from forge.pipeline.archive import infer
from forge.pipeline.archive.connectors import ConversionStep, adapt, bare_steps, bare_trait, read_row
from forge.pipeline.archive.images import document, quoted
from forge.pipeline.archive.lines import ArchiveEvent, Envelope, read_line
from forge.pipeline.archive.order import Generation, Generations, seq_of_change, transaction_of
from forge.pipeline.archive.shapes import ArchiveShape, Shapes
from forge.pipeline.definitions import Definition
from forge.wire import malformed

Row = tuple[Any, ...]
ROW_OPS: Final = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)
_WRONG: Final = (ValueError, ArithmeticError, TypeError, KeyError, RecursionError)
"""Exceptions that a line of arbitrary content can cause, besides DecodeError."""


class UndefinedTable(NamedTuple):
    """Lines that need one unknown definition: of one table and key, with the same columns if they name them."""

    schema: str
    table: str
    key: tuple[str, ...]
    columns: tuple[Any, ...] | None


class ArchivePlan(msgspec.Struct, frozen=True):
    """The plan for reading an archive; `inferred` and `base64` are results of the survey."""

    envelope: Envelope | None = None
    definitions: tuple[Definition, ...] = ()
    generations: tuple[Generation, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = {}
    source: str | None = None
    inferred: Mapping[UndefinedTable, Definition] = {}
    base64: frozenset[tuple[str, str, str]] = frozenset()


class SurveyedLine(NamedTuple):
    """The survey's result for one line: its change, the definition that it lacks, and the traits of its columns.

    `whole` is true for a whole-table change of a table without a known definition: any definition fits it.
    """

    change: Change
    needs: UndefinedTable | None
    whole: bool
    traits: Mapping[str, int]


class Converter:
    """Converts lines by a plan."""

    def __init__(self, plan: ArchivePlan) -> None:
        self._plan = plan
        self._shapes = Shapes(plan.definitions)
        self._generations = Generations(plan.generations)
        self._inferred = {table: ArchiveShape(definition) for table, definition in plan.inferred.items()}
        self._whole: dict[tuple[str, str], ArchiveShape] = {}
        for table, shape in sorted(self._inferred.items(), key=lambda item: item[1].definition.version):
            self._whole[table.schema, table.table] = shape  # the newest one
        self._steps: dict[int, dict[str, ConversionStep]] = {}

    def survey(self, raw: bytes, key: bytes | None = None) -> SurveyedLine | None:
        """Return the facts that the conversion needs from a line; None for an empty line. Raise DecodeError for an
        invalid line."""
        try:
            line = self._read(raw, key)
            if line is None:
                return None
            change, shape, needs = self._settled(line)
            traits: dict[str, int] = {}
            if isinstance(line, ArchiveEvent) and line.described is None:
                _gather(traits, bare_trait, line.after, line.before, _message_key(line, needs))
                if line.by_forge:
                    traits = {name: bits & ~infer.BASE64 for name, bits in traits.items()}
            elif shape is None and needs is not None and needs.columns is None:
                _gather(traits, infer.trait, change.after, change.before)
            if shape is not None:
                return SurveyedLine(change, None, False, traits)
            return SurveyedLine(change, needs, needs is None, traits)
        except _WRONG as error:
            raise malformed(error) from None

    def convert(self, raw: bytes, key: bytes | None = None) -> Row | None:
        """Return the CHANGES row of a line; None for an empty line. Raise DecodeError for an invalid line."""
        try:
            line = self._read(raw, key)
            if line is None:
                return None
            change, shape, needs = self._settled(line)
            if shape is None:
                shape = self._missing(change, needs)
                if isinstance(line, ArchiveEvent):
                    change = self._of_event(line, shape)
            if isinstance(line, Change) and shape.texts:
                change = msgspec.structs.replace(
                    change, before=_with_texts(change.before, shape), after=_with_texts(change.after, shape)
                )
            seq = line.seq if isinstance(line, ArchiveEvent) else None
            return _row(change, seq or seq_of_change(change.source, self._generations), shape)
        except _WRONG as error:
            raise malformed(error) from None

    def _missing(self, change: Change, needs: UndefinedTable | None) -> ArchiveShape:
        shape = self._inferred.get(needs) if needs is not None else self._whole.get((change.schema, change.table))
        if shape is None:
            raise malformed("the archive changed while it was read")
        return shape

    def _read(self, raw: bytes, key: bytes | None) -> Change | ArchiveEvent | None:
        line = read_line(raw, key, self._plan.envelope)
        if isinstance(line, Change) and line.at.tzinfo is not UTC:
            line = msgspec.structs.replace(line, at=line.at.astimezone(UTC))
        change = line.change if isinstance(line, ArchiveEvent) else line
        if change is not None and self._plan.source not in (None, change.source.name):
            raise malformed(f"it is of the other source {change.source.name[:60]!r}")
        return line

    def _settled(self, line: Change | ArchiveEvent) -> tuple[Change, ArchiveShape | None, UndefinedTable | None]:
        """Return the change with its definition if that is known, else with the definition that it needs."""
        change = line.change if isinstance(line, ArchiveEvent) else line
        if change.op not in ROW_OPS:
            return change, self._shapes.newest(change.schema, change.table), None
        if isinstance(line, ArchiveEvent):
            return self._settled_event(line)
        _complete(change)
        key = tuple(change.key or ())
        names = frozenset(change.after or ()) | frozenset(change.before or ())
        shape = self._shapes.choose(change.schema, change.table, names, key, change.before, change.after)
        return change, shape, UndefinedTable(change.schema, change.table, key, None)

    def _settled_event(self, event: ArchiveEvent) -> tuple[Change, ArchiveShape | None, UndefinedTable | None]:
        change = event.change
        key = self._key_of(event)
        names = frozenset(event.after or ()) | frozenset(event.before or ())
        refusals: list[object] = []
        for shape in self._candidates(event, names, key):
            try:
                typed = self._of_event(event, shape)
            except _WRONG as error:
                refusals += [] if shape.inferred else [error]
                continue
            misfit = shape.misfit(typed.before, typed.after)
            if misfit is None:
                return typed, shape, None
            refusals += [] if shape.inferred else [f"the value of {misfit[:60]!r} is none of its type"]
        if refusals and event.described is None:
            # only the lake's definitions could tell a date from a number
            raise malformed(refusals[0])
        columns = None if event.described is None else event.described.columns
        return change, None, UndefinedTable(change.schema, change.table, key or (), columns)

    def _candidates(
        self, event: ArchiveEvent, names: frozenset[str], key: tuple[str, ...] | None
    ) -> list[ArchiveShape]:
        """Return the candidates; a connector's message key is ignored where the lake knows the table's key."""
        space, table = event.change.schema, event.change.table
        if event.by_forge or f"{space}.{table}" in self._plan.keys:
            return self._shapes.candidates(space, table, names, key)
        return [
            shape
            for shape in self._shapes.candidates(space, table, names)
            if key is None or not shape.inferred or sorted(key) == sorted(shape.definition.key)
        ]

    def _key_of(self, event: ArchiveEvent) -> tuple[str, ...] | None:
        """Return the columns of the key; None when the event does not name them, so that a definition may."""
        given = self._plan.keys.get(f"{event.change.schema}.{event.change.table}")
        if given is not None:
            return given
        if event.by_forge:
            return tuple(event.change.key or ())
        names = (event.after or event.before or {}).keys()
        return tuple(event.key) if event.key is not None and event.key.keys() <= names else None

    def _of_event(self, event: ArchiveEvent, shape: ArchiveShape) -> Change:
        """Return the change of an event, with its values in the types of a definition."""
        change = event.change
        before, after = (self._values(event, row, shape) for row in (event.before, event.after))
        if change.op is Op.UPDATE and before is not None and after is not None and not event.by_forge:
            # unchanged out-of-line values are only in the image of before
            after = {name: before.get(name, value) if value is UNAVAILABLE else value for name, value in after.items()}
        key = change.key
        if not event.by_forge and shape.definition.key and change.op in ROW_OPS:
            key = self._key_values(event, shape, before, after)
            before = dict(key) if before is None and change.op is Op.DELETE else _with(before, key)
            after = _with(after, key)
        typed = msgspec.structs.replace(change, key=key, before=before, after=after)
        if change.op in ROW_OPS:
            _complete(typed)
        return typed

    def _values(self, event: ArchiveEvent, row: Mapping[str, Any] | None, shape: ArchiveShape) -> dict[str, Any] | None:
        if event.described is not None:
            read = event.described.row(row)
            return read if shape.inferred else adapt(read, shape.definition.columns)
        return read_row(row, shape.definition.columns, self._bare(shape))

    def _bare(self, shape: ArchiveShape) -> dict[str, ConversionStep]:
        definition = shape.definition
        if definition.version not in self._steps:
            base64 = [
                column
                for schema, table, column in self._plan.base64
                if (schema, table) == (definition.schema, definition.table)
            ]
            self._steps[definition.version] = bare_steps(definition.columns, base64, inferred=shape.inferred)
        return self._steps[definition.version]

    def _key_values(
        self, event: ArchiveEvent, shape: ArchiveShape, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> dict[str, Any]:
        names = shape.definition.key
        rows = [_part(row, names) for row in (after, before) if row is not None]
        if event.key is not None and set(event.key) >= set(names):
            rows.append(self._values(event, _part(event.key, names), shape) or {})
        known = [row for row in rows if not any(value is UNAVAILABLE or value is None for value in row.values())]
        if not known:
            raise ValueError("it lacks its key")
        if event.change.op is Op.UPDATE and before and len(known) > 1 and not same(known[0], known[1]):
            raise ValueError("an update that changes its key")
        return known[0]


def _row(change: Change, seq: str, shape: ArchiveShape) -> Row:
    context, image = change.context, shape.image
    return (
        seq,
        change.id,
        change.op.value,
        change.schema,
        change.table,
        shape.definition.version,
        None if change.key is None else change.row_id,
        None if change.before is None else image(change.before),
        None if change.after is None else image(change.after),
        f"[{','.join(map(quoted, change.hidden))}]" if change.hidden else None,
        change.at,
        transaction_of(change.source),
        context.user_id,
        context.function_name,
        context.trace_id,
        document(dict(context.more)) if context.more else None,
        context.session_user,
        context.application_name,
    )


def inferred(
    traits: Mapping[UndefinedTable, Sequence[tuple[str, int]]], known: Iterable[Definition]
) -> dict[UndefinedTable, Definition]:
    """Return a definition for each kind of line that needs one: from its schema part, or from the traits of values.

    Definitions are numbered in order of appearance.
    """
    found: dict[UndefinedTable, Definition] = {}
    taken = list(known)
    for table, bits in traits.items():
        columns = table.columns or tuple(infer.column(name, each) for name, each in bits)
        names = {column.name for column in columns}
        columns += tuple(infer.column(name, 0) for name in table.key if name not in names)
        found[table] = infer.numbered(table.schema, table.table, columns, table.key, taken)
        taken.append(found[table])
    return found


def _with_texts(row: Mapping[str, Any] | None, shape: ArchiveShape) -> dict[str, Any] | None:
    """Return a row with its JSON as text, as an inferred definition has it."""
    if row is None:
        return None
    return {
        name: document(value) if name in shape.texts and value is not None and value is not UNAVAILABLE else value
        for name, value in row.items()
    }


def _gather(traits: dict[str, int], trait: Any, *rows: Mapping[str, Any] | None) -> None:
    for row in rows:
        for name, value in (row or {}).items():
            traits[name] = traits.get(name, 0) | trait(value)


def _part(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row.get(name, UNAVAILABLE) for name in names}


def _with(row: Mapping[str, Any] | None, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row with the missing columns of its key added."""
    if row is None:
        return None
    return {**row, **{name: value for name, value in key.items() if row.get(name, UNAVAILABLE) is UNAVAILABLE}}


def _message_key(event: ArchiveEvent, needs: UndefinedTable | None) -> Mapping[str, Any] | None:
    """Return the values of the table's key that a message's key contains."""
    return None if event.key is None or needs is None else {name: event.key.get(name) for name in needs.key}


def _complete(change: Change) -> None:
    """Raise when a change lacks an image, or its image lacks the key, that a replay needs."""
    if change.after is None and change.op is not Op.DELETE:
        raise ValueError(f"a {change.op} without the row after it")
    if change.before is None and (change.op is Op.DELETE or (change.op is Op.UPDATE and change.key is None)):
        raise ValueError(f"a {change.op} without the row before it, in a table without a key")
    for row in (change.before, change.after):
        if row is not None and any(row.get(name, UNAVAILABLE) is UNAVAILABLE for name in change.key or ()):
            raise ValueError("it lacks its key")
