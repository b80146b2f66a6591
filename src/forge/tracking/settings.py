"""Tracking settings of a table, present or from before it was disabled: SQL fragments for enabling it again.

Excluded and masked columns stay so unless the caller changes them: a secret must not enter the log because the table
was not tracked for some time. A table is recognized by its identity, even after a rename, and by its name, even after
it was created again or restored: the exclusions of both apply. A renamed column is recognized by its number; a column
that was dropped, or has become part of the key, has no setting.
"""

from typing import Final

LAST: Final = """
    CROSS JOIN LATERAL (SELECT forge.tracked_id(c.oid) AS id) r
    LEFT JOIN (SELECT DISTINCT ON (v.relation) v.relation, v.tracked_table AS id FROM forge.table_version v
               ORDER BY v.relation, v.id DESC) itself ON itself.relation = c.oid
    LEFT JOIN (SELECT o.schema_name, o.table_name, max(o.id) AS id FROM forge.tracked_table o GROUP BY 1, 2) named
      ON (named.schema_name, named.table_name) = (n.nspname, c.relname)
    LEFT JOIN forge.tracked_table k ON k.id = coalesce(r.id, itself.id, named.id)
"""
"""For a table c of pg_class in a schema n of pg_namespace: r.id, its number if tracked, and k, its last settings."""

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
"""Columns to select with LAST, by their present names; null for a table that was never tracked."""
