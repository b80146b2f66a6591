"""Types and names of columns in the lake."""

import pytest
from pyspark.sql.types import StringType, VariantType

from forge.pipeline.silver.names import METADATA, silver_names
from forge.pipeline.silver.types import Types
from forge.values import Column


@pytest.mark.parametrize(
    ("type", "kind", "expected"),
    [
        ("smallint", "plain", "smallint"),
        ("integer", "plain", "int"),
        ("bigint", "plain", "bigint"),
        ("boolean", "plain", "boolean"),
        ("real", "float", "float"),
        ("double precision", "float", "double"),
        ("numeric(12,2)", "numeric", "decimal(12,2)"),
        ("numeric(38,38)", "numeric", "decimal(38,38)"),
        ("numeric(38,0)", "numeric", "decimal(38,0)"),
        ("numeric(39,2)", "numeric", "string"),
        ("numeric(3,-2)", "numeric", "string"),
        ("numeric(2,5)", "numeric", "string"),
        ("numeric", "numeric", "string"),
        ("text", "plain", "string"),
        ("character varying(20)", "plain", "string"),
        ("character(3)", "plain", "string"),
        ('"char"', "plain", "string"),
        ("uuid", "plain", "string"),
        ("bytea", "bytea", "binary"),
        ("date", "plain", "date"),
        ("timestamp without time zone", "plain", "timestamp_ntz"),
        ("timestamp(0) with time zone", "plain", "timestamp"),
        ("time without time zone", "plain", "string"),
        ("interval", "plain", "string"),
        ("int4range", "plain", "string"),
        ("inet", "plain", "string"),
        ("json", "plain", "string"),
        ("jsonb", "jsonb", "string"),
        ("integer", "masked", "string"),
        ("integer[]", "plain[]", "array<int>"),
        ("numeric(12,2)[]", "numeric[]", "array<decimal(12,2)>"),
        ("numeric[]", "numeric[]", "array<string>"),
        ("real[]", "float[]", "array<float>"),
        ("bytea[]", "bytea[]", "array<binary>"),
        ("timestamp with time zone[]", "plain[]", "array<timestamp>"),
        ("uuid[]", "plain[]", "array<string>"),
        # A literal, because the log does not take it apart.
        ("public.mood[]", "plain", "string"),
        ("jsonb[]", "plain", "string"),
        ("int2vector", "plain[]", "string"),
        # Domains are the user's names, but what the log knows of them counts.
        ("public.positive", "plain", "string"),
        ("public.price", "numeric", "string"),
        ("public.temperature", "float", "string"),
        ("public.picture", "bytea", "binary"),
        ("public.settings", "jsonb", "string"),
        ("public.wholes", "plain[]", "array<string>"),
        ("public.positive[]", "plain[]", "array<string>"),
        ("public.pictures", "bytea[]", "array<binary>"),
        ('"odd schema"."integer"', "plain", "string"),
        ('"a.""numeric(12,2)"', "plain", "string"),
        ("", "plain", "string"),
    ],
)
def test_a_column_has_a_type_that_holds_all_its_values(type: str, kind: str, expected: str) -> None:
    found = Types().of(Column("c", type, kind))
    assert found is not None
    assert found.simpleString() == expected


def test_hidden_columns_are_not_in_the_lake() -> None:
    assert Types().of(Column("c", "integer", "hidden")) is None


def test_json_is_a_variant_where_that_is_asked_for() -> None:
    types = Types(json="variant")
    assert types.of(Column("c", "jsonb", "jsonb")) == VariantType()
    assert types.of(Column("c", "json")) == VariantType()
    assert types.of(Column("c", "public.settings", "jsonb")) == VariantType()
    assert types.of(Column("c", "jsonb", "masked")) == StringType()
    assert types.of(Column("c", "text")) == StringType()


def test_a_column_keeps_its_name_unless_it_is_taken() -> None:
    names = silver_names(["id", "Id", "_seq", "_SEQ", "total", "ID", "_key", "straße", "STRASSE"])
    assert names == {
        "id": "id",
        "Id": "Id_",
        "_seq": "_seq_",
        "_SEQ": "_SEQ__",
        "total": "total",
        "ID": "ID__",
        "_key": "_key_",
        "straße": "straße",
        "STRASSE": "STRASSE_",
    }


def test_names_do_not_change_when_columns_are_added() -> None:
    columns = ["id", "ID", *METADATA, "id_", "Id"]
    whole = silver_names(columns)
    for number in range(len(columns)):
        assert silver_names(columns[:number]) == dict(list(whole.items())[:number])
    folded = [name.lower() for name in (*whole.values(), *METADATA)]
    assert len(set(folded)) == len(folded)
