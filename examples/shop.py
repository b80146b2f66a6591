"""A small live shop: one query, two mutations. `docs/tutorial/a-live-page.md` builds it step by step.

python shop.py setup         creates its table and some orders, once: in the embedded PostgreSQL, or FORGE_DATABASE_URL
forge serve shop:app         serves it at http://127.0.0.1:8710
"""

import os
import sys

import forge
from forge.config import load
from forge.database import database
from forge.postgres.connection import connect
from forge.serve.node import Options

PAGE = "http://127.0.0.1:8000"  # where page.html comes from: python -m http.server 8000 --bind 127.0.0.1

app = forge.Forge(options=Options(origins=(PAGE,)))


@app.query(key="id")
async def open_orders(ctx, customer_id: int):
    """What a customer still waits for."""
    return await ctx.db.fetch(
        "SELECT id, status, total FROM orders WHERE customer_id = %(customer_id)s AND status <> 'done' ORDER BY id"
    )


@app.mutation
async def order(ctx, customer_id: int, total: str) -> int:
    """Place an order; returns its number."""
    return await ctx.db.fetch_value(
        "INSERT INTO orders (customer_id, total) VALUES (%(customer_id)s, %(total)s::numeric) RETURNING id"
    )


@app.mutation
async def pay(ctx, order_id: int) -> int:
    """Pay an order; returns how many there were."""
    return await ctx.db.execute("UPDATE orders SET status = 'paid' WHERE id = %(order_id)s")


def setup() -> None:
    """Create the table and track it. Harmless when done before."""
    config = load(environ=os.environ)
    with database(config, create=True) as found, connect(found.url) as db, db.transaction():
        forge.install(db)
        db.execute(
            "CREATE TABLE IF NOT EXISTS orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " customer_id int NOT NULL, status text NOT NULL DEFAULT 'placed', total numeric(10, 2) NOT NULL)"
        )
        db.execute("SELECT forge_enable_reactivity('orders')")
        db.execute(
            "INSERT INTO orders (customer_id, total) SELECT * FROM (VALUES (7, 12.30), (7, 99.00), (8, 5.50)) v"
            " WHERE NOT EXISTS (SELECT FROM orders)"
        )
    print("✓ orders is there, and tracked")


if __name__ == "__main__":
    if sys.argv[1:] != ["setup"]:
        sys.exit("usage: python shop.py setup, then: forge serve shop:app")
    setup()
