"""Quote names and escape text for SQL."""

from psycopg import sql


def quoted(*names: str) -> str:
    """Quote a name, or a qualified name, for SQL.

    >>> quoted("odd place", 'a"b')
    '"odd place"."a""b"'
    """
    return sql.Identifier(*names).as_string()


def escaped(statement: str) -> str:
    """Escape SQL that becomes part of a statement with parameters.

    >>> escaped("a % 2")
    'a %% 2'
    """
    return statement.replace("%", "%%")
