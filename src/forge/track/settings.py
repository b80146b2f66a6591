"""How a table is tracked, or was before it was disabled: pieces of SQL for those who enable it again.

What was excluded or masked stays so unless somebody says otherwise: a secret must not come into the log because the
table was not tracked for a while. A column that was renamed meanwhile is known by its number; of one that is gone, or
has become part of the key, nothing is said.
"""

from typing import Final

LAST: Final = """
    LEFT JOIN forge.tracked_relation r ON r.table_oid = c.oid
    LEFT JOIN forge.tracked_table k ON k.id = coalesce(r.id, (
        SELECT max(o.id) FROM forge.tracked_table o WHERE o.schema_name = n.nspname AND o.table_name = c.relname))
"""
"""For a table c of pg_class in a schema n of pg_namespace: r, the table as it is tracked, and k, its last settings."""

_COLUMNS: Final = """
    CASE WHEN r.id IS NULL AND k.id IS NOT NULL THEN ARRAY(
        SELECT DISTINCT now.name FROM unnest(k.{setting}) x (name), forge.names_now(
            (SELECT v FROM forge.table_version v WHERE v.tracked_table = k.id ORDER BY v.id DESC LIMIT 1), c.oid, x.name
        ) now (name)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = now.name AND a.attnum > 0 AND NOT a.attisdropped
        WHERE now.name <> ALL (forge.key_columns(c.oid)) ORDER BY 1)
    ELSE k.{setting} END
"""
EXCLUDED: Final = _COLUMNS.format(setting="excluded")
MASKED: Final = _COLUMNS.format(setting="masked")
"""Columns beside LAST, by the names that they have now; null for a table that was never tracked."""
