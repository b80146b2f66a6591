"""What the text of a query asks of each table that it names."""

from decimal import Decimal

import pytest

from forge.conditions.canonical import ColumnType
from forge.conditions.tree import (
    TRUE,
    All,
    Any,
    AnyOf,
    Compare,
    Condition,
    Constant,
    Distinct,
    IsNull,
    Not,
    OneOf,
    Parameter,
    Undecided,
)
from forge.errors import StatementUnreadable
from forge.react.expressions import Name, Relation, rejects_nulls
from forge.react.scopes import Statement

T = {
    "id": ColumnType("integer"),
    "a": ColumnType("integer"),
    "b": ColumnType("text"),
    "ok": ColumnType("boolean"),
    "key": ColumnType("uuid"),
    "day": ColumnType("date"),
    "at": ColumnType("timestamp with time zone"),
    "n": ColumnType("numeric"),
    "v": ColumnType("character varying"),
    "user": ColumnType("text"),
    "pair": None,
}
RELATIONS: dict[Name, Relation] = {
    (None, "t"): Relation(1, True, T),
    ("public", "t"): Relation(1, True, T),
    (None, "u"): Relation(2, True, {"id": ColumnType("integer"), "x": ColumnType("integer"), "c": ColumnType("text")}),
    (None, "w"): Relation(3, True, {"y": ColumnType("integer"), "z": ColumnType("integer")}),
    (None, "Mixed"): Relation(4, True, {"Case": ColumnType("integer"), "case": ColumnType("integer")}),
    (None, "view"): Relation(9, False, {"id": ColumnType("integer"), "p": ColumnType("integer")}),
}
A1, X1, Y1 = (Compare(column, "=", Constant(1)) for column in ("a", "x", "y"))


def asked(sql: str) -> list[tuple[int, Condition]]:
    return [(found.oid, found.condition) for found in Statement(sql).occurrences(RELATIONS)]


def where(predicate: str) -> Condition:
    """What `SELECT … FROM t WHERE predicate` asks of t."""
    ((oid, condition),) = asked(f"SELECT 1 FROM t WHERE {predicate}")
    assert oid == 1
    return condition


@pytest.mark.parametrize(
    ("predicate", "condition"),
    [
        ("a = 1", A1),
        ("1 = a", A1),
        ("t.a = 1", A1),
        ("(a) = (1)", A1),
        ("a < 1", Compare("a", "<", Constant(1))),
        ("1 < a", Compare("a", ">", Constant(1))),
        ("1 >= a", Compare("a", "<=", Constant(1))),
        ("a <> 1", Compare("a", "<>", Constant(1))),
        ("a != 1", Compare("a", "<>", Constant(1))),
        ("a = -1", Compare("a", "=", Constant(-1))),
        ("n = 2.50", Compare("n", "=", Constant(Decimal("2.50")))),
        ("n > -1e3", Compare("n", ">", Constant(Decimal("-1000")))),
        ("b = 'it''s \\n 100%%'", Compare("b", "=", Constant("it's \\n 100%"))),
        ("a = NULL", Compare("a", "=", Constant(None))),
        ("ok = true", Compare("ok", "=", Constant(True))),
        ("a = %(p)s", Compare("a", "=", Parameter("p"))),
        ("a = %s AND n = %s", All((Compare("a", "=", Parameter("0")), Compare("n", "=", Parameter("1"))))),
        ("a = %(p)s AND n = %(p)s", All((Compare("a", "=", Parameter("p")), Compare("n", "=", Parameter("p"))))),
        ("a BETWEEN 1 AND 2", All((Compare("a", ">=", Constant(1)), Compare("a", "<=", Constant(2))))),
        ("a NOT BETWEEN 1 AND 2", Not(All((Compare("a", ">=", Constant(1)), Compare("a", "<=", Constant(2)))))),
        ("a IN (1, -2, NULL)", OneOf("a", (Constant(1), Constant(-2), Constant(None)))),
        ("a IN (%(p)s, %(q)s)", OneOf("a", (Parameter("p"), Parameter("q")))),
        ("a NOT IN (1, 2)", Not(OneOf("a", (Constant(1), Constant(2))))),
        ("a = ANY(%(p)s)", AnyOf("a", Parameter("p"))),
        ("key = ANY(%(p)s::uuid[])", AnyOf("key", Parameter("p"))),
        ("a IS NULL", IsNull("a")),
        ("a IS NOT NULL", Not(IsNull("a"))),
        ("ok", Compare("ok", "=", Constant(True))),
        ("NOT ok", Not(Compare("ok", "=", Constant(True)))),
        ("ok IS TRUE", Not(Distinct("ok", Constant(True)))),
        ("ok IS NOT TRUE", Not(Not(Distinct("ok", Constant(True))))),
        ("ok IS FALSE", Not(Distinct("ok", Constant(False)))),
        ("ok IS UNKNOWN", IsNull("ok")),
        ("a IS DISTINCT FROM 1", Distinct("a", Constant(1))),
        ("1 IS DISTINCT FROM a", Distinct("a", Constant(1))),
        ("a IS NOT DISTINCT FROM %(p)s", Not(Distinct("a", Parameter("p")))),
        ("NOT a = 1", Not(A1)),
        ("a = 1 OR b = 'x'", Any((A1, Compare("b", "=", Constant("x"))))),
        (
            "a = 1 OR b = 'x' AND ok",
            Any((A1, All((Compare("b", "=", Constant("x")), Compare("ok", "=", Constant(True)))))),
        ),
        ("NOT (a = 1 OR length(b) = 2)", Not(Any((A1, Undecided())))),
        ("a = 1 AND (a = 2 OR lower(b) = 'x')", A1),
        ("false", Any(())),
        ("key = %(p)s::uuid", Compare("key", "=", Parameter("p"))),
        ("key = CAST('x' AS uuid)", Compare("key", "=", Constant("x"))),
        ("b = 'x'::text", Compare("b", "=", Constant("x"))),
        ("v = %(p)s::varchar", Compare("v", "=", Parameter("p"))),
        ("b = %(p)s::varchar", Compare("b", "=", Parameter("p"))),
        ("day = date '2020-01-01'", Compare("day", "=", Constant("2020-01-01"))),
        ("at > timestamptz '2020-01-01 00:00Z'", Compare("at", ">", Constant("2020-01-01 00:00Z"))),
        ("a = 5::int", Compare("a", "=", Constant(5))),
        ("a = %(p)s::int", Compare("a", "=", Parameter("p", cut=True))),
        ("day = %(p)s::date", Compare("day", "=", Parameter("p", cut=True))),
        ("a = ANY(%(p)s::int[])", AnyOf("a", Parameter("p", cut=True))),
        ("T.A = 1", A1),
        ('"a" = 1', A1),
        ("\"user\" = 'x'", Compare("user", "=", Constant("x"))),
        ("t.user = 'x'", Compare("user", "=", Constant("x"))),
        ("a = 1 /* or /* nested */ ok */", A1),
    ],
)
def test_what_is_understood(predicate: str, condition: Condition) -> None:
    assert where(predicate) == condition


@pytest.mark.parametrize(
    "predicate",
    [
        "true",
        "a = id",
        "a + 1 = 2",
        "a = 1 + 1",
        "a = -%(p)s",
        "lower(b) = 'x'",
        "b LIKE 'x%%'",
        "b COLLATE \"C\" = 'x'",
        "b = 'x' COLLATE \"C\"",
        "a::text = '1'",
        "a = '1.5'::numeric",
        "a = 1.5::int",
        "n = 1.5::numeric(3,0)",
        "v = 'xyz'::varchar(2)",
        "b = 'x'::citext",
        "b = E'x\\n'",
        "b = $$x$$",
        "b = U&'\\0041'",
        "(a, n) = (1, 2)",
        "a BETWEEN SYMMETRIC 2 AND 1",
        "1 BETWEEN a AND n",
        "a IN (SELECT 1)",
        "a IN (1, id)",
        "a IN (1, %(p)s)",
        "a = ANY(ARRAY[1, 2])",
        "%(p)s = ANY(a)",
        "a <> ALL(%(p)s)",
        "a = SOME(SELECT 1)",
        "EXISTS (SELECT 1)",
        "day = current_date",
        "at > now()",
        "user = 'x'",
        "a IS NULL = true",
        "a = 1 IS NULL",
        "a = 1 IS NOT TRUE",
        "(a = 1) IS TRUE",
        "a IS TRUE",
        "a",
        "pair IS NULL",
        "a OPERATOR(pg_catalog.=) 1",
        "public.t.a = 1",
        "missing = 1",
        "a = 1 OR EXISTS (SELECT 1)",
        "t.ctid = '(0,1)'",
    ],
)
def test_what_asks_nothing(predicate: str) -> None:
    assert where(predicate) == TRUE


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        # Names.
        ("SELECT 1 FROM public.t WHERE t.a = 1", [(1, A1)]),
        ("SELECT 1 FROM t AS q WHERE q.a = 1", [(1, A1)]),
        ("SELECT 1 FROM t AS q WHERE t.a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM other WHERE a = 1", []),
        ('SELECT 1 FROM "T" WHERE a = 1', []),
        ('SELECT 1 FROM "Mixed" WHERE "Case" = 1', [(4, Compare("Case", "=", Constant(1)))]),
        ('SELECT 1 FROM "Mixed" WHERE Case_ = 1', [(4, TRUE)]),
        ("SELECT 1 FROM t AS q (x1, x2) WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t AS q (x1, x2) WHERE q.a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM ONLY t WHERE a = 1", [(1, A1)]),
        ("TABLE t", [(1, TRUE)]),
        ("VALUES (1)", []),
        ("SELECT 1", []),
        # An unqualified column belongs to the one source that has it, if all are known.
        ("SELECT 1 FROM t, u WHERE a = 1 AND x = 1", [(1, A1), (2, X1)]),
        ("SELECT 1 FROM t, u WHERE id = 1", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t, u AS t2 WHERE t.id = 1", [(1, Compare("id", "=", Constant(1))), (2, TRUE)]),
        ("SELECT 1 FROM t, f() WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t, f() WHERE t.a = 1", [(1, A1)]),
        ("SELECT 1 FROM t, other WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t, view WHERE a = 1 AND id = 1", [(1, A1)]),
        ("SELECT 1 FROM t, (SELECT 1 AS one) q WHERE a = 1", [(1, A1)]),
        ("SELECT 1 FROM t, (SELECT 1 AS a) q WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t, (SELECT 1) q WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t, (SELECT 1) q (one) WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t, (VALUES (1)) q (one) WHERE a = 1", [(1, TRUE)]),
        ("SELECT 1 FROM t, t WHERE t.a = 1", [(1, TRUE), (1, TRUE)]),
        # Twice read, twice asked.
        ("SELECT 1 FROM t p, t q WHERE p.a = 1 AND q.a = 2", [(1, A1), (1, Compare("a", "=", Constant(2)))]),
        ("SELECT 1 FROM t p, t q WHERE p.a = 1 OR q.a = 1", [(1, TRUE), (1, TRUE)]),
        ("SELECT 1 FROM t, u WHERE t.a = 1 OR u.x = 1", [(1, TRUE), (2, TRUE)]),
        # Each SELECT by itself.
        (
            "SELECT 1 FROM t WHERE a = 1 UNION SELECT 1 FROM t WHERE a = 2",
            [(1, A1), (1, Compare("a", "=", Constant(2)))],
        ),
        ("SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.x = 1 AND t.a = 1)", [(1, TRUE), (2, X1)]),
        ("SELECT 1 FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND x = 1)", [(1, TRUE), (2, X1)]),
        ("SELECT 1 FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE a = 1)", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t WHERE a IN (SELECT x FROM u WHERE x = 1) AND a = 1", [(1, A1), (2, X1)]),
        ("SELECT (SELECT x FROM u WHERE x = 1) FROM t WHERE a = 1", [(1, A1), (2, X1)]),
        ("SELECT 1 FROM t WHERE a = (SELECT 1 FROM t WHERE a = 1)", [(1, TRUE), (1, A1)]),
        ("SELECT 1 FROM (SELECT * FROM t WHERE a = 1) q WHERE q.a = 2", [(1, A1)]),
        ("SELECT 1 FROM t, LATERAL (SELECT 1 FROM u WHERE u.x = 1 AND t.a = 2) q WHERE t.a = 1", [(1, A1), (2, X1)]),
        ("SELECT 1 FROM t LEFT JOIN LATERAL (SELECT 1 FROM u WHERE x = 1) q ON t.a = 2", [(1, TRUE), (2, X1)]),
        ("SELECT count(*) FILTER (WHERE a = 1) FROM t", [(1, TRUE)]),
        ("SELECT a FROM t GROUP BY a HAVING a = 1", [(1, TRUE)]),
        ("SELECT a = 1 FROM t ORDER BY a = 1", [(1, TRUE)]),
        # Common table expressions.
        ("WITH t AS (SELECT 1 AS a) SELECT 1 FROM t WHERE a = 1", []),
        ("WITH t AS (SELECT * FROM t WHERE a = 1) SELECT * FROM t WHERE a = 2", [(1, A1)]),
        ("WITH T AS (SELECT 1) SELECT 1 FROM public.t WHERE a = 1", [(1, A1)]),
        ('WITH "T" AS (SELECT 1) SELECT 1 FROM t WHERE a = 1', [(1, A1)]),
        ("WITH q AS (SELECT a FROM t WHERE a = 1) SELECT 1 FROM q, u WHERE x = 1", [(1, A1), (2, X1)]),
        ("WITH q AS (SELECT a FROM t), t AS (SELECT 1 AS a) SELECT 1 FROM t, q", [(1, TRUE)]),
        ("WITH RECURSIVE t AS (SELECT 1 AS a UNION SELECT a FROM t WHERE a = 1) SELECT 1 FROM t", []),
        (
            "WITH RECURSIVE q AS (SELECT a FROM t WHERE a = 1 UNION SELECT t.a FROM t JOIN q ON t.n = q.a) TABLE q",
            [(1, A1), (1, TRUE)],
        ),
        ("SELECT 1 FROM (WITH t AS (SELECT 1 AS a) SELECT * FROM t) q, t WHERE t.a = 1", [(1, A1)]),
        (
            "SELECT 1 FROM (WITH t AS (SELECT 1 AS one) SELECT * FROM t UNION SELECT one FROM t) q, u WHERE u.x = 1",
            [(2, X1)],
        ),
        # Inner joins.
        ("SELECT 1 FROM t JOIN u ON t.id = u.id AND t.a = 1 AND u.x = 1", [(1, A1), (2, X1)]),
        ("SELECT 1 FROM t CROSS JOIN u WHERE t.a = 1 AND u.x = 1", [(1, A1), (2, X1)]),
        ("SELECT 1 FROM t JOIN u USING (id) WHERE a = 1 AND id = 1", [(1, A1), (2, TRUE)]),
        ("SELECT 1 FROM t NATURAL JOIN u WHERE a = 1", [(1, A1), (2, TRUE)]),
        # ON of an outer join filters what it does not keep.
        ("SELECT 1 FROM t LEFT JOIN u ON t.a = 1 AND u.x = 1", [(1, TRUE), (2, X1)]),
        ("SELECT 1 FROM t RIGHT JOIN u ON t.a = 1 AND u.x = 1", [(1, A1), (2, TRUE)]),
        ("SELECT 1 FROM t FULL JOIN u ON t.a = 1 AND u.x = 1", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON u.x IS NULL", [(1, TRUE), (2, IsNull("x"))]),
        ("SELECT 1 FROM t NATURAL LEFT JOIN u WHERE t.a = 1 AND u.x IS NULL", [(1, A1), (2, TRUE)]),
        # WHERE on a side that may be filled with nulls filters only where they do not pass.
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE t.a = 1 AND u.x = 1", [(1, A1), (2, X1)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE t.a IS NULL AND u.x IS NULL", [(1, IsNull("a")), (2, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE u.x IS NOT NULL", [(1, TRUE), (2, Not(IsNull("x")))]),
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE u.x IS DISTINCT FROM 1", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE u.x = 1 OR u.c IS NULL", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE NOT u.x = ANY(%(p)s)", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true WHERE NOT (u.x = 1 AND u.c = 'c')", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t RIGHT JOIN u ON true WHERE t.a IS NULL AND u.x IS NULL", [(1, TRUE), (2, IsNull("x"))]),
        ("SELECT 1 FROM t FULL JOIN u ON true WHERE t.a IS NULL AND u.x IS NULL", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t FULL JOIN u ON true WHERE t.a = 1", [(1, A1), (2, TRUE)]),
        # What an earlier join filled with nulls, a later ON sees.
        ("SELECT 1 FROM t LEFT JOIN u ON true JOIN w ON u.x = 1", [(1, TRUE), (2, X1), (3, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true JOIN w ON u.x IS NULL", [(1, TRUE), (2, TRUE), (3, TRUE)]),
        ("SELECT 1 FROM t JOIN u ON u.x IS NULL LEFT JOIN w ON true", [(1, TRUE), (2, IsNull("x")), (3, TRUE)]),
        ("SELECT 1 FROM t JOIN u ON u.x IS NULL FULL JOIN w ON true", [(1, TRUE), (2, IsNull("x")), (3, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true RIGHT JOIN w ON u.x IS NULL", [(1, TRUE), (2, TRUE), (3, TRUE)]),
        ("SELECT 1 FROM t JOIN u ON true RIGHT JOIN w ON true WHERE t.a IS NULL", [(1, TRUE), (2, TRUE), (3, TRUE)]),
        ("SELECT 1 FROM t LEFT JOIN u ON true LEFT JOIN w ON t.a = 1 AND w.y = 1", [(1, TRUE), (2, TRUE), (3, Y1)]),
        # A comma binds less than JOIN: ON does not see what is before it.
        ("SELECT 1 FROM t, u JOIN w ON t.a = 1 AND u.x = 1", [(1, TRUE), (2, X1), (3, TRUE)]),
        ("SELECT 1 FROM t, u RIGHT JOIN w ON true WHERE t.a IS NULL", [(1, IsNull("a")), (2, TRUE), (3, TRUE)]),
        # Structures that are not looked into.
        ("SELECT 1 FROM (t JOIN u ON t.a = 1) WHERE t.a = 1", [(1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM w JOIN (t LEFT JOIN u ON u.x = 1) ON t.a = 1 WHERE w.y = 1", [(3, Y1), (1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM w LEFT JOIN t JOIN u ON t.a = 1 ON w.y = 1", [(3, TRUE), (1, TRUE), (2, TRUE)]),
        ("SELECT 1 FROM t TABLESAMPLE system (10) WHERE t.a = 1", [(1, TRUE)]),
    ],
)
def test_scopes(sql: str, found: list[tuple[int, Condition]]) -> None:
    assert sorted(asked(sql), key=repr) == sorted(found, key=repr)


def test_a_long_chain_is_not_too_deep() -> None:
    many = " AND ".join(f"a <> {number}" for number in range(150))
    condition = where(many)
    assert isinstance(condition, All)
    assert len(condition.conditions) == 150


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        ("SELECT t FROM t", True),
        ("SELECT row_to_json(q) FROM t q", True),
        ("SELECT count(t.*) FROM t", True),
        ("SELECT (t).a FROM t", True),
        ("SELECT q FROM (SELECT * FROM t) q", True),
        ("SELECT a FROM t WHERE EXISTS (SELECT u FROM u)", True),
        ("SELECT t.* FROM t", False),
        ("SELECT * FROM t q", False),
        ("SELECT q.a, count(*) FROM t q GROUP BY q.a", False),
    ],
)
def test_whole_rows(sql: str, whole: bool) -> None:
    assert Statement(sql).whole_rows is whole


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "",
        "SELECT 1 FROM",
        "SELECT '%(p)s' FROM t",
        "SELECT 1 FROM t WHERE a = @1",
        "SELECT 1 FROM t WHERE a = %(p)s OR a = @1",
        "SELECT 1 FROM t WHERE a = $1",
        "(" * 3000 + "SELECT 1" + ")" * 3000,
    ],
)
def test_what_cannot_be_read(sql: str) -> None:
    with pytest.raises(StatementUnreadable):
        Statement(sql)


@pytest.mark.parametrize(
    ("sql", "is_query"),
    [
        ("SELECT 1", True),
        ("(SELECT 1) UNION (SELECT 2)", True),
        ("TABLE t", True),
        ("VALUES (1)", True),
        ("WITH q AS (SELECT 1) SELECT 1", True),
        ("WITH q AS (DELETE FROM t RETURNING *) SELECT 1", False),
        ("UPDATE t SET a = 1", False),
        ("CREATE TABLE x AS SELECT 1", False),
    ],
)
def test_what_writes(sql: str, is_query: bool) -> None:
    assert Statement(sql).is_query is is_query


def test_names_are_folded_as_postgresql_folds_them() -> None:
    statement = Statement(f'SELECT 1 FROM T, "T", Public.U, "Ünï".Ünï, {"x" * 70}')
    assert statement.names == {(None, "t"), (None, "T"), ("public", "u"), ("Ünï", "Ünï"), (None, "x" * 63)}


@pytest.mark.parametrize(
    ("condition", "rejects"),
    [
        (A1, True),
        (Not(A1), True),
        (OneOf("a", (Constant(1),)), True),
        (Not(OneOf("a", (Constant(1),))), True),
        (AnyOf("a", Parameter("p")), True),
        (Not(AnyOf("a", Parameter("p"))), False),
        (IsNull("a"), False),
        (Not(IsNull("a")), True),
        (Distinct("a", Constant(1)), False),
        (Distinct("a", Constant(None)), True),
        (Not(Distinct("a", Constant(1))), True),
        (Not(Distinct("a", Constant(None))), False),
        (Not(Distinct("a", Parameter("p"))), False),
        (All((A1, IsNull("a"))), True),
        (All(()), False),
        (Any((A1, IsNull("a"))), False),
        (Any((A1, X1)), True),
        (Not(All((A1, X1))), False),
        (Undecided(), False),
        (Not(Undecided()), False),
    ],
)
def test_what_rejects_nulls(condition: Condition, rejects: bool) -> None:
    assert rejects_nulls(condition) is rejects
