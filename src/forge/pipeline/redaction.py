"""Apply `redact` Changes of one table: remove the values that they name from bronze, history and quarantine.

In bronze the images of the row lose these values exactly as the log's own images did, so reading bronze again gives the
same result as reading the log again. In the history the columns are null in every version of the row before the
redaction, and `_redacted` names them. Misfits in quarantine are read again, because the values that did not fit may be
gone. Current is unchanged: a redaction changes no row in the database, and current mirrors the database.

A redaction is idempotent and may be interrupted and repeated at any point: values already removed are skipped. Nothing
is appended to bronze, so Delta's record of written batches stays valid. Files with the old values remain until they are
vacuumed.

A row is identified by its key, from `since` to `until` where the key belonged to another row before or after (see the
log's reference). Those are positions in the log, and versions are compared by `seq`, so the positions are looked up
among the row's own versions. A position that is not found is from before the lake began, or was purged with everything
before it: then all versions in the lake come after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType

from forge.change import Op
from forge.pipeline.changes import seq as seq_of
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver import table
from forge.pipeline.silver.bounds import look
from forge.pipeline.silver.images import any_of
from forge.pipeline.silver.layout import Era, Layout, in_order, layout, of_era
from forge.pipeline.silver.names import silver_names
from forge.pipeline.silver.row_shaping import placed, union
from forge.pipeline.silver.rows import ROW_OPS, quoted
from forge.pipeline.silver.types import Types
from forge.pipeline.tables import exists, load
from forge.values import REDACTED, parts

AT_ONCE: Final = 200
"""The number of redactions of the same columns that are applied together."""

IMAGES: Final = "struct<before: string, after: string, hidden: string>"

_GONE: Final = f'{{"{REDACTED}":true}}'.encode()
_names: Final = msgspec.json.Decoder(list[str]).decode


class Redaction(msgspec.Struct, frozen=True):
    """The columns to redact of the row with this key; `since` and `until` are `seq` without the generation."""

    seq: str
    row_id: str
    columns: tuple[str, ...]
    since: str | None = None
    until: str | None = None


class _Note(msgspec.Struct):
    """The context of a `redact` Change."""

    since: str | None = None
    until: str | None = None


def found(changes: DataFrame) -> list[Redaction]:
    """Return the redactions among changes."""
    rows = changes.where((F.col("op") == Op.REDACT) & F.col("row_id").isNotNull() & F.col("hidden").isNotNull())
    redactions = []
    for row in rows.select("seq", "row_id", "hidden", "context").collect():
        note = msgspec.json.decode(row["context"] or "{}", type=_Note)
        since, until = _position(note.since), _position(note.until)
        redactions.append(Redaction(row["seq"], row["row_id"], tuple(sorted(_names(row["hidden"]))), since, until))
    return redactions


def obey(
    spark: SparkSession,
    lake: Lake,
    definitions: Mapping[int, Definition],
    changes: DataFrame,
    types: Types | None = None,
) -> None:
    """Apply the redactions among these changes to the table with these definitions."""
    newest = in_order(definitions.values())[-1]
    whose = (F.col("schema") == newest.schema) & (F.col("table") == newest.table)
    redactions = found(changes.where(whose))
    for columns, group in _together(redactions):
        kept = _take_out_of_bronze(spark, lake, whose, columns, group)
        if exists(spark, lake.quarantine):
            _read_misfits_anew(spark, lake, definitions, kept, types)
    take_out_of_history(spark, lake, layout(definitions.values(), types), definitions.values(), redactions)


def take_out_of_history(
    spark: SparkSession,
    lake: Lake,
    plan: Layout,
    definitions: Iterable[Definition],
    redactions: Iterable[Redaction],
) -> None:
    """Set these columns to null in all versions of these rows."""
    path = lake.history(plan.table)
    names = silver_names(dict.fromkeys(column.name for each in in_order(definitions) for column in each.columns))
    keys = {name for era in plan.eras for name in era.key}
    for columns, group in _together(redactions):
        wanted = {names[column] for column in columns if column in names}
        places = [name for name in plan.columns if plan.older.get(name, name) in wanted and name not in keys]
        gone = F.array(*map(F.lit, places))
        known = F.coalesce(F.col("_redacted"), F.array().cast("array<string>"))
        rows = load(spark, path)
        concerned = [
            condition
            for each in group
            for era in plan.eras
            if (mine := _has_key(era, plan, each.row_id)) is not None
            and (condition := _concerned(rows, "_seq", mine, each)) is not None
        ]
        if places and concerned:
            undone = F.size(F.array_except(gone, known)) > 0
            values: dict[str, str | Column] = {quoted(name): F.lit(None).cast(plan.columns[name]) for name in places}
            values["_redacted"] = F.sort_array(F.array_union(known, gone))
            DeltaTable.forPath(spark, path).update(any_of(concerned) & undone, values)


def images(
    before: str | None, after: str | None, hidden: str | None, columns: Sequence[str]
) -> tuple[str | None, str | None, str | None] | None:
    """Return both images of a change without the values of these columns, and the hidden columns that changed; None if
    there is nothing to remove. Text that is not an image is removed whole.

    >>> images('{"email":"a"}', '{"id":7,"email":"b"}', None, ["email"])[::2]
    ('{"email":{"$redacted":true},"$redacted":["email"]}', '["email"]')
    >>> images(None, '{"id":7,"email":{"$redacted":true},"$redacted":["email"]}', None, ["email"]) is None
    True
    """
    try:
        old, new = (None if image is None else parts(image) for image in (before, after))
    except msgspec.DecodeError:
        return None, None, hidden
    gone = {
        name
        for members in (old, new)
        for name, value in (members or {}).items()
        if name in columns and bytes(value) != _GONE
    }
    if not gone:
        return None
    secret = [] if hidden is None else _names(hidden)
    if old is not None and new is not None:
        secret += [
            name
            for name in sorted(gone)
            if name not in secret and name in old and bytes(old[name]) != bytes(new.get(name, b""))
        ]
    return _image(old, columns), _image(new, columns), msgspec.json.encode(secret).decode() if secret else None


def _image(members: dict[str, msgspec.Raw] | None, columns: Sequence[str]) -> str | None:
    if members is None:
        return None
    before = _names(members.pop(REDACTED, b"[]"))
    gone = [name for name in members if name in columns or name in before]
    values: dict[str, object] = {name: msgspec.Raw(_GONE) if name in gone else raw for name, raw in members.items()}
    return msgspec.json.encode(values | ({REDACTED: gone} if gone else {})).decode()


def _take_out_of_bronze(
    spark: SparkSession, lake: Lake, whose: Column, columns: Sequence[str], group: Sequence[Redaction]
) -> DataFrame:
    """Return the changes that redactions of the same columns concern, as bronze has them after the redaction."""
    rows = load(spark, lake.changes).where(whose & F.col("op").isin(*ROW_OPS))
    conditions = [_concerned(rows, "seq", F.col("row_id") == each.row_id, each) for each in group]
    mine = any_of(condition for condition in conditions if condition is not None)
    taken = arrow_udf(_taken(columns), IMAGES)("before", "after", "hidden")  # type: ignore[call-overload]
    made = rows.where(mine).select("day", "seq", "id", taken.alias("images")).where("images IS NOT NULL")
    made = made.dropDuplicates(["day", "seq", "id"]).localCheckpoint()
    count, bounds = look(made, ["day"])
    if count[0]:
        same = ["t.day = s.day", "t.seq = s.seq", "t.id = s.id", *(each.sql("t") for each in bounds)]
        (
            DeltaTable.forPath(spark, lake.changes)
            .alias("t")
            .merge(made.alias("s"), " AND ".join(same))
            .whenMatchedUpdate(set={name: f"s.images.{name}" for name in ("before", "after", "hidden")})
            .execute()
        )
    return load(spark, lake.changes).where(whose & F.col("op").isin(*ROW_OPS) & mine)


def _read_misfits_anew(
    spark: SparkSession, lake: Lake, definitions: Mapping[int, Definition], kept: DataFrame, types: Types | None
) -> None:
    """Merge those of the changes that are in quarantine into silver again, and put those that still do not fit back.

    Silver comes first: after an interruption the row is in both, and leaves quarantine at the next attempt.
    """
    same = ["seq", "id"]
    misfits = kept.join(load(spark, lake.quarantine).select(*same), same, "left_semi").select(*kept.columns)
    versions = frozenset(row["version"] for row in misfits.select("version").distinct().collect())
    if not versions:
        return
    table.take(spark, lake, definitions, misfits, application="redaction", batch=0, versions=versions, types=types)
    present = {version: definitions[version] for version in versions}
    eras = layout(definitions.values(), types).eras
    placements = [rows for era in eras if (rows := placed(misfits, present, era, types)) is not None]
    left = union([rows.misfits for rows in placements])
    source = misfits.select(*same).join(left, same, "left").localCheckpoint()
    values: dict[str, str | Column] = {name: f"s.{quoted(name)}" for name in ("column", "reason", "payload")}
    (
        DeltaTable.forPath(spark, lake.quarantine)
        .alias("t")
        .merge(source.alias("s"), "t.seq = s.seq AND t.id = s.id")
        .whenMatchedUpdate("s.reason IS NOT NULL AND NOT (t.reason = s.reason AND t.payload <=> s.payload)", values)
        .whenMatchedDelete("s.reason IS NULL")
        .execute()
    )


def _taken(columns: Sequence[str]) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    def taken(before: pa.Array, after: pa.Array, hidden: pa.Array) -> pa.Array:
        rows = zip(before.to_pylist(), after.to_pylist(), hidden.to_pylist(), strict=True)
        made = [images(before, after, hidden, columns) for before, after, hidden in rows]
        names = ("before", "after", "hidden")
        found = [None if each is None else dict(zip(names, each, strict=True)) for each in made]
        return pa.array(found, pa.struct([(name, pa.string()) for name in names]))

    return taken


def _together(redactions: Iterable[Redaction]) -> Iterable[tuple[tuple[str, ...], Sequence[Redaction]]]:
    by_columns: dict[tuple[str, ...], list[Redaction]] = {}
    for each in redactions:
        by_columns.setdefault(each.columns, []).append(each)
    for columns, group in by_columns.items():
        for start in range(0, len(group), AT_ONCE):
            yield columns, group[start : start + AT_ONCE]


def _concerned(rows: DataFrame, seq: str, mine: Column, redaction: Redaction) -> Column | None:
    """Return the condition for the rows that a redaction means, among those with its key; None if there can be none."""
    condition = mine & (F.col(seq) < redaction.seq)

    def place(position: str) -> str | None:
        there = rows.where(mine & (F.substring(seq, 5, len(position) + 1) == position)).agg(F.max(seq)).first()
        return None if there is None else there[0]

    if redaction.until is not None:
        if (last := place(redaction.until)) is None:
            return None
        condition = condition & (F.col(seq) <= last)
    if redaction.since is not None and (first := place(redaction.since)) is not None:
        condition = condition & (F.col(seq) >= first)
    return condition


def _has_key(era: Era, plan: Layout, row_id: str) -> Column | None:
    """Return the condition that a version of an era has a key; None if none can."""
    if not era.keyed:
        return None
    texts = [row_id]
    if len(era.key) > 1:
        try:
            texts = _names(row_id)
        except msgspec.DecodeError:
            return None
    if len(texts) != len(era.key):
        return None
    condition = F.expr(of_era(era)) if plan.marked else F.lit(True)
    for name, text in zip(era.key, texts, strict=True):
        condition = condition & (F.col(quoted(name)) == _typed(text, plan.columns[name]))
    return condition


def _typed(text: str, type: DataType) -> Column:
    return F.unhex(F.lit(text[2:])) if isinstance(type, BinaryType) else F.lit(text).try_cast(type)


def _position(text: str | None) -> str | None:
    """Return a position in the form that `seq` uses.

    >>> _position("15.15"), _position("15.16"), _position(None)
    ('000000000000000f', '000000000000000f0000000000000010', None)
    """
    if text is None:
        return None
    place, _, id = text.partition(".")
    return seq_of(0, int(place), int(id))[4:]
