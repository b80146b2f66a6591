"""Typed rows from changes: the frame of changes of one table in, one row per change of a row out.

Each change is read by the definition that it was written under, and gives a row of the target: columns that the change
lacks are null, columns that the target lacks are dropped, and a value with another type in the target is converted if
that loses nothing. A value that does not fit makes its row a misfit: no value is rounded or truncated. A misfit whose
key can be read still counts as a change of that key, so that no older version stays current: its other values are as
read, those that do not fit are null, and `_unfit` names them. Frames are computed lazily, and no Python runs per row.

In a table without a key `_key` identifies a row: it is equal for equal rows, whatever versions they were written under.
There, an update is two rows, the delete of the row before (`_seq` + `a`) and the insert of the row after (`_seq` +
`b`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType, TimestampType

from forge import values
from forge.change import Op
from forge.pipeline.definitions import Definition
from forge.pipeline.silver import reasons, texts
from forge.pipeline.silver.images import ColumnReading, any_of, readable, taken_out
from forge.pipeline.silver.names import silver_names
from forge.pipeline.silver.types import Types

ROW_OPS: Final = tuple(map(str, (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)))
MISFITS: Final = StructType(
    [
        StructField("seq", StringType(), False),
        StructField("id", StringType(), False),
        StructField("schema", StringType(), False),
        StructField("table", StringType(), False),
        StructField("version", IntegerType(), False),
        StructField("op", StringType(), False),
        StructField("column", StringType()),
        StructField("reason", StringType(), False),
        StructField("payload", StringType()),
        StructField("at", TimestampType(), False),
    ]
)
"""Rows that did not fit. `reason` is one line, the kind of problem before its colon; `payload` is the image's text;
`column` is null when the image itself is invalid."""

_ABOUT: Final = {
    "_seq": "seq",
    "_op": "op",
    "_at": "at",
    "_transaction": "transaction",
    "_user_id": "user_id",
    "_function_name": "function_name",
    "_trace_id": "trace_id",
    "_session_user": "session_user",
}
_LIMITS: Final = {"maxNumLen": "1000000"}


class ReadRows:
    """The result of reading changes; both parts derive from `read`, which a caller that uses both should persist.

    `read` has the target's columns, `_seq`, `_op`, `_at`, `_transaction`, `_user_id`, `_function_name`, `_trace_id`,
    `_session_user`, `_missing`, `_redacted`, `_unfit`, `_key` in a table without a key, and `_misfit`, null for rows
    that fit. `_unfit` names the columns of a misfit that are null because their values do not fit; it is null for rows
    that fit, and for misfits whose key cannot be read. `_redacted` names the columns whose values were redacted and are
    null; it is null when there are none. `_missing` names the columns that are in the change's definition and not in
    its image; null when there are none.
    """

    def __init__(self, read: DataFrame, reader: "_Reader") -> None:
        self.read: Final = read
        self._reader = reader

    @property
    def fitting(self) -> DataFrame:
        """The rows that fit."""
        return self.read.where(F.col("_misfit").isNull()).drop("_misfit", "_unfit")

    @property
    def misfits(self) -> DataFrame:
        """The other rows, with the columns of MISFITS. They are few: they are read again to find the problem."""
        found = self.read.where(F.col("_misfit").isNotNull()).select(
            F.col("_seq").alias("seq"), F.col("_op").alias("op"), F.col("_at").alias("at"), "_misfit.*"
        )
        explained = self._reader.read(found).select("*", self._reader.why()).select("*", "why.*")
        return explained.withColumnRenamed("image", "payload").select(*MISFITS.fieldNames())


def rows(
    changes: DataFrame, definitions: Mapping[int, Definition], target: Definition, types: Types | None = None
) -> ReadRows:
    """Return the rows of the changes of one table."""
    application = changes.sparkSession.sparkContext.applicationId
    reader = _reader(application, tuple(definitions.values()), target, types or Types())
    return ReadRows(reader.rows(changes), reader)


@lru_cache(maxsize=1000)
def _reader(application: str, definitions: tuple[Definition, ...], target: Definition, types: Types) -> "_Reader":
    """Build the expressions once for all batches of an application: each of them costs a call to the JVM."""
    return _Reader(definitions, target, types)


def applies() -> Column:
    """Whether a row is a version of its key: it fits, or at least its key does."""
    return F.col("_misfit").isNull() | F.col("_unfit").isNotNull()


def _never() -> Column:
    """Return false in a form that keeps Spark from pushing conditions below the reading of a row; it would read the
    image twice, once to test whether it fits and once for its values."""
    return F.monotonically_increasing_id() < 0


def renamed(columns: Column, names: Mapping[str, str]) -> Column:
    """Return an array of names with the renamed ones replaced."""
    pairs = [F.lit(text) for pair in names.items() if pair[0] != pair[1] for text in pair]
    if not pairs:
        return columns
    return F.transform(columns, lambda name: F.coalesce(F.element_at(F.create_map(*pairs), name), name))


def silver_columns(target: Definition, types: Types | None = None) -> dict[str, DataType]:
    """Return the names and types of the table's own columns in the lake."""
    names = silver_names(column.name for column in target.columns)
    found = ((names[column.name], (types or Types()).of(column)) for column in target.columns)
    return {name: type for name, type in found if type is not None}


def quoted(name: str) -> str:
    """Return a column's name quoted for an expression.

    >>> quoted("a.`b`")
    '`a.``b```'
    """
    return "`" + name.replace("`", "``") + "`"


def _shown(definition: Definition) -> list[values.Column]:
    return [column for column in definition.columns if column.kind != "hidden"]


def _images(changes: DataFrame, *, keyed: bool, marks: bool) -> DataFrame:
    """Return the changes of rows, each with the image that its row is read from, and the names `redacted` in it.

    `marks` is false for a table with a column that has the name of the redaction marker. Such a table cannot be
    redacted, nor can rows without a key, because nothing identifies them.
    """
    changes = changes.where(F.col("op").isin(*ROW_OPS))
    nothing = F.lit(None).cast("array<string>")
    image = F.when(F.col("op") == Op.DELETE, F.col("before")).otherwise(F.col("after"))
    if keyed:
        changes = changes.withColumn("image", image)
        marked = {"image": readable(F.col("image")), "redacted": taken_out(F.col("image"))}
        return changes.withColumns(marked if marks else {"redacted": nothing})
    changes = changes.withColumn("redacted", nothing)
    one = F.array(F.struct(F.col("seq").alias("seq"), F.col("op").alias("op"), image.alias("image")))
    # The row before is {**after, **before}: in JSON the last member of a name wins.
    before = F.when(F.coalesce(F.col("before"), F.lit("{}")) == "{}", F.col("after")).otherwise(
        F.concat(F.substring("after", F.lit(1), F.length("after") - 1), F.lit(","), F.substring("before", 2, 2**31 - 1))
    )
    two = F.array(
        F.struct(F.concat("seq", F.lit("a")).alias("seq"), F.lit(Op.DELETE).alias("op"), before.alias("image")),
        F.struct(F.concat("seq", F.lit("b")).alias("seq"), F.lit(Op.INSERT).alias("op"), F.col("after").alias("image")),
    )
    parts = F.explode(F.when(F.col("op") == Op.UPDATE, two).otherwise(one)).alias("part")
    others = [name for name in changes.columns if name not in ("seq", "op", "before", "after")]
    return changes.select(*others, parts).select(*others, "part.*")


class _Field(NamedTuple):
    """A column of the target in a group of versions. `place` is the prefix of its columns in the frame."""

    reading: ColumnReading
    place: str

    @property
    def source(self) -> str:
        return self.place

    @property
    def raw(self) -> str:
        return f"{self.place}_raw" if self.reading.is_cut else self.place

    @property
    def text(self) -> str:
        return f"{self.place}_text" if self.reading.is_cut else self.place

    @property
    def value(self) -> str:
        return self.place if self.reading.is_direct else f"{self.place}_value"

    @property
    def bad(self) -> str:
        return f"{self.place}_bad"


class _Group(NamedTuple):
    """Versions that are read alike: a column that several of them have is the same in all of them."""

    corrupt: str
    versions: list[int]
    fields: dict[str, _Field]

    @property
    def own(self) -> Column:
        """Whether a change is of one of these versions."""
        return F.col("version").isin(self.versions)

    @property
    def parsed(self) -> list[tuple[str, _Field]]:
        return [(name, field) for name, field in self.fields.items() if not field.reading.is_cut]

    @property
    def cut(self) -> list[tuple[str, _Field]]:
        return [(name, field) for name, field in self.fields.items() if field.reading.is_cut]

    @property
    def doubtful(self) -> list[tuple[str, _Field]]:
        """The fields that can be bad although from_json reported no error."""
        return [(name, field) for name, field in self.fields.items() if field.reading.may_be_bad]


class _Reader:
    """Read the rows of a target from images of any of its versions, in steps: each step adds columns that the next ones
    use, so that Spark computes nothing twice."""

    def __init__(self, definitions: Sequence[Definition], target: Definition, types: Types) -> None:
        columns = silver_columns(target, types)
        names = silver_names(column.name for column in target.columns)
        self._keyed = bool(target.key)
        self._types = types
        self._targets = {column.name: columns[names[column.name]] for column in _shown(target)}
        self._definitions = {definition.version: definition for definition in definitions}
        self._groups = _groups(definitions, self._targets)
        self._structs, self._places = self._parsed()
        self._steps = [step for group in self._groups for step in self._read(group) if step]
        self._missing = self._lacking().alias("missing")
        misfit = F.when(self._wrong() | _never(), F.struct("id", "schema", "table", "version", "image"))
        self._columns = [
            *(self._value(column.name).alias(names[column.name]) for column in _shown(target)),
            *(F.col(column).alias(name) for name, column in _ABOUT.items()),
            renamed(F.when(F.size("missing") > 0, F.col("missing")), names).alias("_missing"),
            F.sort_array(renamed(F.col("redacted"), names)).alias("_redacted"),
            F.sort_array(renamed(F.col("unfit"), names)).alias("_unfit"),
            misfit.alias("_misfit"),
        ]
        self._unfitting = self._unfit_columns(target).alias("unfit")
        typed = ((name, type, F.col(quoted(name))) for name, type in columns.items())
        self._key = F.md5(texts.named(typed).cast("binary")).alias("_key")

    def rows(self, changes: DataFrame) -> DataFrame:
        """Return the changes of rows as rows of the target."""
        images = _images(changes, keyed=self._keyed, marks=values.REDACTED not in self._targets)
        found = self.read(images).select("*", self._missing, self._unfitting).select(*self._columns)
        return found if self._keyed else found.select("*", self._key)

    def read(self, changes: DataFrame) -> DataFrame:
        """Return changes, each with its image and the result of each step."""
        kept = changes.columns
        frame = changes.select("*", *self._structs)
        # By position: Spark cannot find a field by name where two names differ only in case.
        frame = frame.select(*kept, *(f"_{place}.*" for place in range(len(self._structs))))
        frame = frame.toDF(*kept, *self._places)
        for step in self._steps:
            frame = frame.select("*", *step)
        return frame

    def _parsed(self) -> tuple[list[Column], list[str]]:
        """Return the results of from_json for each image, and the names of their fields."""
        structs, places = list[Column](), list[str]()
        for group in self._groups:
            fields = [StructField(name, field.reading.parsed_type) for name, field in group.parsed]
            schema = StructType([*fields, StructField(group.corrupt, StringType())])
            options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": group.corrupt, **_LIMITS}
            structs.append(self._only(group, F.from_json("image", schema, options)).alias(f"_{len(structs)}"))
            places += [*(field.source for _, field in group.parsed), group.corrupt]
        return structs, places

    def _read(self, group: _Group) -> list[list[Column]]:
        """Apply the steps after parsing."""
        image = F.col("image")
        cut, made = group.cut, [field for field in group.fields.values() if not field.reading.is_direct]
        bad = {
            field.bad: field.reading.bad(F.col(field.source), F.col(field.text), F.col(field.value), image)
            for _, field in group.doubtful
        }
        return [
            [self._only(group, field.reading.cut(image)).alias(field.source) for _, field in cut],
            [field.reading.raw(F.col(field.source)).alias(field.raw) for _, field in cut],
            [field.reading.text(F.col(field.raw)).alias(field.text) for _, field in cut],
            [field.reading.value(F.col(field.text)).alias(field.value) for field in made],
            [(group.own & is_bad).alias(name) for name, is_bad in bad.items()],
        ]

    def _only(self, group: _Group, value: Column) -> Column:
        return value if len(self._groups) == 1 else F.when(group.own, value)

    def _value(self, name: str) -> Column:
        """Return a column of the target."""
        fields = [(group, group.fields[name]) for group in self._groups if name in group.fields]
        found = [
            self._only(
                group,
                F.when(~F.col(field.bad), F.col(field.value)) if field.reading.may_be_bad else F.col(field.value),
            )
            for group, field in fields
        ]
        return (F.coalesce(*found) if found else F.lit(None)).cast(self._targets[name])

    def _lacking(self) -> Column:
        """Return the columns that an image should have and lacks; null, or empty, when there are none."""
        image = F.col("image")
        found = F.lit(None).cast("array<string>")
        for group in self._groups:
            for has, versions in self._expected(group).items():
                fields = [group.fields[name] for name in has]
                absent = any_of(field.reading.absent(F.col(field.source), image) for field in fields)
                names = F.array_except(F.array(*map(F.lit, has)), F.json_object_keys(image))
                found = F.when(F.col("version").isin(versions) & absent, names).otherwise(found)
        return found

    def _expected(self, group: _Group) -> dict[tuple[str, ...], list[int]]:
        """Return the columns of the target that versions have, with these versions."""
        expected: dict[tuple[str, ...], list[int]] = {}
        for version in group.versions:
            shown = _shown(self._definitions[version])
            has = tuple(column.name for column in shown if column.name in self._targets)
            expected.setdefault(has, []).append(version)
        return expected

    def _unfit_columns(self, target: Definition) -> Column:
        """Return the columns of a misfit whose values do not fit; null for other rows, and where the key is unknown."""
        nothing = F.lit(None).cast("array<string>")
        if not target.key:
            return nothing
        bad = [F.when(F.col(field.bad), F.lit(name)) for group in self._groups for name, field in group.doubtful]
        parts = [F.array_compact(F.array(*bad))] if bad else []
        for group in self._groups:
            lost = self._lost(group, lambda each, texts: each["name"])
            if lost is not None:
                found = F.when(F.col(group.corrupt).isNotNull(), lost)
                parts.append(F.coalesce(found, F.array().cast("array<string>")))
        if not parts:
            return nothing
        has_key = [self._value(name).isNotNull() for name in target.key]
        whole = reduce(Column.__and__, [*has_key, self._wrong(), ~self._unknown(), ~_no_image()])
        names = F.array_distinct(F.concat(*parts))
        return F.when(whole, F.when(F.size(names) > 0, names))

    def _wrong(self) -> Column:
        """Whether a row is a misfit."""
        bad = [F.col(field.bad) for group in self._groups for _, field in group.doubtful]
        corrupt = [F.col(group.corrupt).isNotNull() for group in self._groups]
        return any_of([self._unknown(), _no_image(), *bad, *corrupt])

    def why(self) -> Column:
        """Return the problem of a row: `column` and `reason`."""
        whys = [
            F.when(self._unknown(), _why(None, F.lit(f"{reasons.UNKNOWN_DEFINITION}: the lake does not have it"))),
            F.when(_no_image(), _why(None, _not_an_image())),
        ]
        for group in self._groups:
            whys += [F.when(F.col(field.bad), self._unfit(name, field)) for name, field in group.doubtful]
            whys.append(F.when(F.col(group.corrupt).isNotNull(), self._unparsed(group)))
        return F.coalesce(*whys).alias("why")

    def _unknown(self) -> Column:
        return ~F.col("version").isin(list(self._definitions))

    def _unfit(self, name: str, field: _Field) -> Column:
        same = self._types.of(field.reading.column) == field.reading.target
        kind = reasons.kind(field.reading.target) if same else reasons.TYPE_CHANGED
        text = field.reading.shown(F.col(field.text))
        return _why(name, reasons.misfit(F.lit(kind), text, F.lit(field.reading.target.simpleString())))

    def _unparsed(self, group: _Group) -> Column:
        """Return the problem of the first column that from_json could not read."""
        nothing = _why(None, _not_an_image())

        def why(each: Column, texts: Column) -> Column:
            return _why(each["name"], reasons.misfit(each["kind"], F.element_at(texts, each["name"]), each["type"]))

        lost = self._lost(group, why)
        return nothing if lost is None else F.coalesce(F.get(lost, F.lit(0)), nothing)

    def _lost(self, group: _Group, told: Callable[[Column, Column], Column]) -> Column | None:
        """Find the columns that from_json could not read, by reading the whole image again as texts; None if none is
        read by it. `told` is given a column's `name`, `kind` and `type`, and the texts by name."""
        fields = [
            F.struct(
                F.lit(name).alias("name"),
                F.lit(reasons.kind(field.reading.target)).alias("kind"),
                F.lit(field.reading.target.simpleString()).alias("type"),
                F.col(field.source).isNull().alias("lost"),
            )
            for name, field in group.parsed
        ]
        if not fields:
            return None

        def lost(texts: Column) -> Column:
            found = F.filter(
                F.array(*fields), lambda each: each["lost"] & F.element_at(texts, each["name"]).isNotNull()
            )
            return F.transform(found, lambda each: told(each, texts))

        once = F.array(F.from_json("image", "map<string, string>", _LIMITS))
        return F.get(F.transform(once, lost), F.lit(0))


def _groups(definitions: Iterable[Definition], targets: Mapping[str, DataType]) -> list[_Group]:
    groups: list[_Group] = []
    for definition in sorted(definitions, key=lambda each: each.version):
        mine = [column for column in _shown(definition) if column.name in targets]
        logged = definition.version > 0
        group = next((group for group in groups if _alike(group, mine, logged)), None)
        if group is None:
            group = _Group(f"_{len(groups)}_corrupt", [], {})
            groups.append(group)
        group.versions.append(definition.version)
        for column in mine:
            place = f"_{groups.index(group)}_{len(group.fields)}"
            group.fields.setdefault(column.name, _Field(ColumnReading(column, targets[column.name], logged), place))
    return groups


def _alike(group: _Group, columns: Sequence[values.Column], logged: bool) -> bool:
    """Whether a version with these columns can join a group."""
    return (group.versions[0] > 0) == logged and all(
        column.name not in group.fields or group.fields[column.name].reading.column == column for column in columns
    )


def _no_image() -> Column:
    return F.col("image").isNull() | ~F.col("image").startswith("{")


def _not_an_image() -> Column:
    return F.concat(
        F.lit(f"{reasons.NOT_AN_IMAGE}: "), F.coalesce(reasons.shown(F.col("image")), F.lit("there is none"))
    )


def _why(column: str | Column | None, reason: Column) -> Column:
    name = column if isinstance(column, Column) else F.lit(column).cast("string")
    return F.struct(name.alias("column"), reason.alias("reason"))
