"""Random images of a table with all types, as PostgreSQL prints them, and what is to become of them in the lake.

`forge.values` and the standard library tell what an image says; nothing here knows how Spark reads it.
"""

import json
import math
import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from forge.pipeline.definitions import Definition
from forge.pipeline.silver.rows import silver_columns
from forge.values import Column, Images

ODD = 'we"ird\\ .`name`\n'
ALL = Definition(
    1,
    "public",
    "all types",
    (
        Column("id", "bigint"),
        Column("small", "smallint"),
        Column("whole", "integer"),
        Column("flag", "boolean"),
        Column("words", "text"),
        Column("short words", "character varying(9)"),
        Column("code", "uuid"),
        Column("price", "numeric(12,2)", "numeric"),
        Column("widest", "numeric(38,18)", "numeric"),
        Column("free", "numeric", "numeric"),
        Column("rounded", "numeric(3,-2)", "numeric"),
        Column("ratio", "double precision", "float"),
        Column("single", "real", "float"),
        Column("bytes", "bytea", "bytea"),
        Column("doc", "jsonb", "jsonb"),
        Column("json text", "json"),
        Column("day", "date"),
        Column("local", "timestamp without time zone"),
        Column("at", "timestamp(3) with time zone"),
        Column("clock", "time without time zone"),
        Column("secret", "text", "hidden"),
        Column("masked", "integer", "masked"),
        Column("positive", "public.positive"),
        Column("temperature", "public.temperature", "float"),
        Column("literal", "public.mood[]"),
        Column("wholes", "integer[]", "plain[]"),
        Column("texts", "text[]", "plain[]"),
        Column("prices", "numeric(12,2)[]", "numeric[]"),
        Column("numbers", "numeric[]", "numeric[]"),
        Column("ratios", "double precision[]", "float[]"),
        Column("blobs", "bytea[]", "bytea[]"),
        Column("days", "date[]", "plain[]"),
        Column("times", "timestamp with time zone[]", "plain[]"),
        Column("flags", "public.flags", "plain[]"),
        Column("ID", "integer"),
        Column("_seq", "text"),
        Column(ODD, "numeric", "numeric"),
        Column("last", "jsonb", "jsonb"),
    ),
    ("id",),
)
NASTY = [
    '"',
    "\\",
    ",",
    '","id":1',
    ',"price":7,',
    '{"price":8',
    "\n",
    "\t",
    "\x7f",
    "\u2028",
    "é",
    "漢",
    "🐘",
    "[",
    "]",
    "{}",
    "null",
    "",
    " ",
    "NaN",
]


class Sample:
    """Random tokens, as PostgreSQL prints them, for each type; few of them do not fit."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def image(self, definition: Definition) -> str:
        members = [
            f"{json.dumps(column.name, ensure_ascii=False)}:{self.token(column)}"
            for column in definition.columns
            if column.kind != "hidden"
        ]
        return "{" + ",".join(members) + "}"

    def token(self, column: Column) -> str:
        if column.name != "id" and self.random.random() < 0.1:
            return "null"
        if column.kind == "masked":
            return '"***"'
        if column.kind.endswith("[]"):
            return self.array(column)
        if column.kind == "jsonb":
            return self.logged_jsonb()
        return self.scalar(column.type)

    def rarely(self) -> bool:
        return self.random.random() < 0.01

    def scalar(self, type: str) -> str:
        pick, rarely = self.random, self.rarely()
        match type:
            case "smallint":
                return str(pick.choice([0, -32768, 32767, pick.randrange(-999, 999)]) if not rarely else 32768)
            case "integer" | "public.positive":
                return str(pick.choice([0, 2**31 - 1, pick.randrange(10**6)]) if not rarely else 2**31)
            case "bigint":
                return str(pick.choice([0, 2**63 - 1, -(2**63), 9007199254740993, pick.randrange(10**12)]))
            case "boolean":
                return pick.choice(["true", "false"])
            case "numeric(12,2)":
                whole = pick.randrange(1, 10 ** pick.choice([1, 5, 10]))
                return '"NaN"' if rarely else f"{pick.choice(['', '-'])}{whole}.{pick.randrange(100):02}"
            case "numeric(38,18)":
                return f"{pick.randrange(10**20)}.{pick.randrange(10**18):018}"
            case "numeric":
                plain = f"{pick.choice(['', '-'])}{pick.randrange(1, 10 ** pick.choice([1, 20, 60]))}"
                return pick.choice(
                    [plain, plain + f".{pick.randrange(10**40):040}0", "0.10", '"NaN"', '"-Infinity"', "0"]
                )
            case "numeric(3,-2)":
                return f"{pick.randrange(1, 1000)}00"
            case "double precision" | "public.temperature":
                number = struct.unpack("d", pick.randbytes(8))[0]
                number = number if math.isfinite(number) and number != 0 else 0.1
                return pick.choice(
                    [repr(number), '"0"', '"-0"', '"NaN"', '"Infinity"', '"-Infinity"', "1e+20", "5e-324", "1"]
                )
            case "real":
                return pick.choice(
                    ["0.1", "16777216", "3.4028235e+38", "1e-45", '"-0"', '"NaN"', f"{pick.random():.6}"]
                )
            case "bytea":
                return f'"\\\\x{pick.randbytes(pick.randrange(9)).hex()}"'
            case "date":
                usual = self.day()
                odd = pick.choice(["infinity", "-infinity", "0044-03-15 BC", "12026-01-01"])
                return f'"{odd if rarely else usual}"'
            case "timestamp without time zone" | "timestamp with time zone" | "timestamp(3) with time zone":
                usual = f"{self.day()}T{pick.randrange(24):02}:{pick.randrange(60):02}:{pick.randrange(60):02}"
                parts = (f".{pick.randrange(1, 1000):03}", f".{pick.randrange(1, 10**6):06}")
                usual += pick.choice(["", *(part.rstrip("0") for part in parts)])
                zone = "+00:00" if "with time" in type else ""
                odd = pick.choice(
                    ["infinity", "-infinity", f"0044-03-15T00:00:00{zone} BC", f"12026-01-01T00:00:00{zone}"]
                )
                return f'"{odd if rarely else usual + zone}"'
            case "time without time zone":
                return pick.choice(['"24:00:00"', '"12:00:00.5"'])
            case _:
                return json.dumps(self.text(), ensure_ascii=pick.random() < 0.1)

    def day(self) -> str:
        pick = self.random
        return f"{pick.randrange(1, 10000):04}-{pick.randrange(1, 13):02}-{pick.randrange(1, 29):02}"

    def text(self) -> str:
        return "".join(self.random.choice([*NASTY, "ab", "x"]) for _ in range(self.random.randrange(6)))

    def array(self, column: Column) -> str:
        element = column.type.removesuffix("[]") if column.type.endswith("[]") else "text"
        if self.rarely():
            return self.random.choice(['"[0:1]={1,2}"', f"[[{self.scalar(element)}],[null]]"])
        return (
            "["
            + ",".join(
                self.scalar(element) if self.random.random() > 0.2 else "null" for _ in range(self.random.randrange(5))
            )
            + "]"
        )

    def logged_jsonb(self) -> str:
        value = self.jsonb(3)
        return f'{{"$json" : {value}}}' if value == "null" or '"$json": ' in value else value

    def jsonb(self, depth: int) -> str:
        pick = self.random
        match pick.randrange(7 if depth else 5):
            case 0:
                return json.dumps(self.text(), ensure_ascii=False)
            case 1:
                return pick.choice(["true", "false", "null"])
            case 2 | 3 | 4:
                return pick.choice(["1", "1.10", "-0.0", "1" * 60 + ".50", "9007199254740993", "12.30"])
            case 5:
                return "[" + ", ".join(self.jsonb(depth - 1) for _ in range(pick.randrange(4))) + "]"
            case _:
                names = [
                    json.dumps(pick.choice(["price", "id", "last", "a,", "$json", self.text()]), ensure_ascii=False)
                    for _ in range(pick.randrange(4))
                ]
                return "{" + ", ".join(f"{name}: {self.jsonb(depth - 1)}" for name in dict.fromkeys(names)) + "}"


def expected(definition: Definition, image: str) -> tuple[dict[str, Any], set[str]]:
    """The row as forge.values reads it, in the types of the lake, and the columns that do not fit."""
    row = Images(definition.columns, definition.key).row(image)
    tokens = dict(members(image))
    names = iter(silver_columns(definition).items())
    found: dict[str, Any] = {}
    misfits: set[str] = set()
    for column in definition.columns:
        if column.kind == "hidden":
            continue
        silver, type = next(names)
        try:
            found[silver] = in_the_lake(column, type.simpleString(), row[column.name], tokens[column.name])
        except DoesNotFit:
            misfits.add(column.name)
    return found, misfits


class DoesNotFit(Exception):
    pass


def in_the_lake(column: Column, type: str, value: Any, token: str) -> Any:
    if value is None:
        return None
    if column.kind == "jsonb":
        wrapper = '{"$json" : '
        return token[len(wrapper) : -1] if token.startswith(wrapper) else token
    if type.startswith("array<"):
        if not isinstance(value, list) or any(isinstance(item, list) for item in value):
            raise DoesNotFit
        tokens = [None if item == "null" else item.strip('"') for item in token[1:-1].split(",")]
        return [
            None
            if item is None
            else in_the_lake_alone(type[6:-1], item, tokens[place] if column.kind in ("numeric[]", "float[]") else None)
            for place, item in enumerate(value)
        ]
    return in_the_lake_alone(type, value, token.strip('"'))


def in_the_lake_alone(type: str, value: Any, token: str | None) -> Any:
    limits = {"smallint": 2**15, "int": 2**31, "bigint": 2**63}
    match type:
        case "smallint" | "int" | "bigint":
            if not -limits[type] <= value < limits[type]:
                raise DoesNotFit
        case "decimal(12,2)" | "decimal(38,18)" if not value.is_finite():
            raise DoesNotFit
        case "date" | "timestamp" | "timestamp_ntz":
            if "infinity" in value or "BC" in value or value.index("-") != 4:
                raise DoesNotFit
            return value.replace("T", " ").removesuffix("+00:00")
        case "float":
            return struct.unpack("f", struct.pack("f", value))[0]
        case "string" if not isinstance(value, str):
            return token if token is not None else json.dumps(value)
    return value


def members(image: str) -> Iterator[tuple[str, str]]:
    """The tokens of an image, found by the decoder of the standard library."""
    decoder, place = json.JSONDecoder(), 1
    while image[place] != "}":
        name, place = decoder.raw_decode(image, place + (image[place] == ","))
        _, end = decoder.raw_decode(image, place + 1)
        yield name, image[place + 1 : end]
        place = end


def alike(value: Any) -> Any:
    """Something that is equal for equal values only: floats by their bits, decimals with their digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return [*map(alike, value)]
    return bytes(value) if isinstance(value, bytearray) else value
