"""Names in SQL."""

from psycopg import sql


def quoted(*names: str) -> str:
    """A name, or a name within others, as SQL writes it.

    >>> quoted("odd place", 'a"b')
    '"odd place"."a""b"'
    """
    return sql.Identifier(*names).as_string()


def escaped(statement: str) -> str:
    """SQL that becomes part of a statement with parameters.

    >>> escaped("a % 2")
    'a %% 2'
    """
    return statement.replace("%", "%%")
