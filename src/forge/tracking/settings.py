"""How a table is tracked, or was before it was disabled: pieces of SQL for those who enable it again.

What was excluded or masked stays so unless somebody says otherwise: a secret must not come into the log because the
table was not tracked for a while. A table is known by itself, also where it was renamed meanwhile, and by its name,
also where it was made again or restored: what was excluded of either is. A column that was renamed is known by its
number; of one that is gone, or has become part of the key, nothing is said.
"""

from typing import Final

LAST: Final = """
    LEFT JOIN forge.tracked_relation r ON r.table_oid = c.oid
    LEFT JOIN (SELECT DISTINCT ON (v.relation) v.relation, v.tracked_table AS id FROM forge.table_version v
               ORDER BY v.relation, v.id DESC) itself ON itself.relation = c.oid
    LEFT JOIN (SELECT o.schema_name, o.table_name, max(o.id) AS id FROM forge.tracked_table o GROUP BY 1, 2) named
      ON (named.schema_name, named.table_name) = (n.nspname, c.relname)
    LEFT JOIN forge.tracked_table k ON k.id = coalesce(r.id, itself.id, named.id)
"""
"""For a table c of pg_class in a schema n of pg_namespace: r, the table as it is tracked, and k, its last settings."""

_COLUMNS: Final = """
    CASE WHEN r.id IS NULL AND k.id IS NOT NULL THEN ARRAY(
        SELECT DISTINCT now.name FROM forge.tracked_table o, unnest(o.{setting}) x (name), forge.names_now(
            (SELECT v FROM forge.table_version v WHERE v.tracked_table = o.id ORDER BY v.id DESC LIMIT 1), c.oid, x.name
        ) now (name)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = now.name AND a.attnum > 0 AND NOT a.attisdropped
        WHERE o.id IN (itself.id, named.id) AND now.name <> ALL (forge.key_columns(c.oid)) ORDER BY 1)
    ELSE k.{setting} END
"""
EXCLUDED: Final = _COLUMNS.format(setting="excluded")
MASKED: Final = _COLUMNS.format(setting="masked")
"""Columns beside LAST, by the names that they have now; null for a table that was never tracked."""
