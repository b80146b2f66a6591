-- The two tables that writes are measured on, once for each way of capture: {0} is its suffix.
CREATE TABLE probe_{0} (
    id   bigint PRIMARY KEY,
    name text,
    n    int,
    note text
);

CREATE TABLE customers_{0} (
    id   bigint PRIMARY KEY,
    name text NOT NULL
);
INSERT INTO customers_{0} SELECT g, 'customer ' || g FROM generate_series(1, 1000) g;

CREATE TABLE orders_{0} (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers_{0},
    status      text NOT NULL,
    total       numeric(12, 2) NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    note        text
);
CREATE INDEX ON orders_{0} (customer_id);
CREATE INDEX ON orders_{0} (status);
