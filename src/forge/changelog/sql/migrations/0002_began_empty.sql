-- Set where tracking began: whether the table was empty then, so that the log alone has all of its rows from there on.
-- NULL for a version that continues the one before it.
ALTER TABLE forge.table_version ADD COLUMN empty boolean;
