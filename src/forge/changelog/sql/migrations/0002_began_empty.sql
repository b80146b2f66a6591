-- Where tracking began: whether the table had no row then, so that the log alone tells all of its rows from there on. NULL for a
-- version that goes on from the one before it.
ALTER TABLE forge.table_version ADD COLUMN empty boolean;
