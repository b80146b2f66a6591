-- The definitions of log rows are sealed with them: the table versions that no earlier seal has, and 32 bytes of digest
-- for each. NULL if there are none, and in seals older than this column; the first seal after those has their versions.
ALTER TABLE forge.log_seal ADD COLUMN versions integer[], ADD COLUMN definitions bytea;
ALTER TABLE forge.log_seal ALTER definitions SET STORAGE EXTERNAL;
CREATE INDEX log_seal_versions ON forge.log_seal (id) WHERE versions IS NOT NULL;
