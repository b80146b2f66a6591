-- A small shop: the tables that the demo's traffic writes to. The comment distinguishes the demo's schema from others.
CREATE SCHEMA shop;
COMMENT ON SCHEMA shop IS 'The shop of forge demo';

CREATE TABLE shop.customers (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    email       text NOT NULL UNIQUE,
    preferences jsonb NOT NULL DEFAULT '{}',
    joined_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE shop.inventory (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sku        text NOT NULL UNIQUE,
    name       text NOT NULL,
    price      numeric(10, 2) NOT NULL CHECK (price > 0),
    stock      integer NOT NULL CHECK (stock >= 0),
    attributes jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE shop.orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES shop.customers,
    status      text NOT NULL DEFAULT 'placed' CHECK (status IN ('placed', 'paid', 'shipped', 'refunded', 'cancelled')),
    total       numeric(12, 2) NOT NULL,
    placed_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX orders_status ON shop.orders (status, id);

CREATE TABLE shop.order_items (
    order_id   bigint NOT NULL REFERENCES shop.orders ON DELETE CASCADE,
    line       integer NOT NULL,
    product_id integer NOT NULL REFERENCES shop.inventory,
    quantity   integer NOT NULL CHECK (quantity > 0),
    price      numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE shop.payments (
    id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    order_id bigint NOT NULL REFERENCES shop.orders,
    amount   numeric(12, 2) NOT NULL,
    card     text NOT NULL,
    status   text NOT NULL DEFAULT 'captured' CHECK (status IN ('captured', 'refunded')),
    paid_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX payments_order ON shop.payments (order_id);

INSERT INTO shop.customers (name, email, preferences)
SELECT n, lower(n) || '@example.com', jsonb_build_object('newsletter', i % 2 = 0)
FROM unnest(ARRAY['Ada', 'Grace', 'Linus', 'Margaret', 'Ken', 'Barbara', 'Edsger', 'Radia']) WITH ORDINALITY p (n, i);

INSERT INTO shop.inventory (sku, name, price, stock, attributes)
SELECT format('SKU-%s', 100 + i), n, (i * 7 % 40) + 4.90, 40, jsonb_build_object('shelf', chr(64 + i::int))
FROM unnest(ARRAY['Anvil', 'Bellows', 'Chisel', 'Drift', 'Fuller', 'Hammer', 'Hardy', 'Poker', 'Punch', 'Quench bucket',
                  'Rasp', 'Swage', 'Tongs', 'Vice', 'Apron', 'Gloves']) WITH ORDINALITY p (n, i);
