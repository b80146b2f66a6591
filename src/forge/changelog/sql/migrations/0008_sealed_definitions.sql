-- What rows of the log mean is sealed with them: the table versions that no earlier seal has, and 32 bytes of digest for each. NULL
-- where there is none, and in seals from before this was done; their versions are in the first seal after it.
ALTER TABLE forge.log_seal ADD COLUMN versions integer[], ADD COLUMN definitions bytea;
ALTER TABLE forge.log_seal ALTER definitions SET STORAGE EXTERNAL;
CREATE INDEX log_seal_versions ON forge.log_seal (id) WHERE versions IS NOT NULL;
