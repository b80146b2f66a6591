-- The source of a consumer that does not read this log: its kind and its name; and the consumer's lag there in bytes.
ALTER TABLE forge.consumer ADD COLUMN source text, ADD COLUMN lag_bytes bigint;

-- The batch of a source that a consumer is processing: its changes, and the cursor behind them. The saved cursor says
-- how many of them are handled; once it is behind all of them, they are deleted from here.
CREATE TABLE forge.consumer_page (
    id      integer PRIMARY KEY REFERENCES forge.consumer_cursor ON DELETE CASCADE,
    cursor  text NOT NULL,
    changes text[] NOT NULL
);
