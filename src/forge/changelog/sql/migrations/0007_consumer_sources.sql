-- What a consumer reads when it is not this log: the kind of source and its name; and how many bytes it is behind there.
ALTER TABLE forge.consumer ADD COLUMN source text, ADD COLUMN lag_bytes bigint;

-- The batch of a source that a consumer is in the middle of: its changes, and the cursor behind them. The saved cursor says
-- how many of them are handled; once it stands behind them all, they are gone from here.
CREATE TABLE forge.consumer_page (
    id      integer PRIMARY KEY REFERENCES forge.consumer_cursor ON DELETE CASCADE,
    cursor  text NOT NULL,
    changes text[] NOT NULL
);
