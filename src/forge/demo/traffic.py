"""Traffic of the shop: each function is one transaction, with a user, a reason and a trace.

Every function returns the number of rows that it wrote, as counted by the server; the log must contain the same number.
No function writes a row twice or without changing it.
"""

import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from forge.postgres.connection import AsyncConnection

Action = Callable[[AsyncConnection, random.Random], Awaitable[int]]

STAFF: Final = ("ada", "grace", "linus", "margaret", "ken")
FIRST_NAMES: Final = ("Alan", "Anita", "Donald", "Frances", "Hedy", "John", "Katherine", "Leslie", "Niklaus", "Tim")


async def _write(connection: AsyncConnection, statement: str, *values: Any) -> int:
    return (await connection.execute(statement.encode(), values)).rowcount


async def _rows(connection: AsyncConnection, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return await (await connection.execute(statement.encode(), values)).fetchall()


async def signup(connection: AsyncConnection, chance: random.Random) -> int:
    """A new customer signs up."""
    name = chance.choice(FIRST_NAMES)
    return await _write(
        connection,
        "INSERT INTO shop.customers (name, email, preferences)"
        " VALUES (%s, %s, jsonb_build_object('newsletter', %s::boolean))",
        name,
        f"{name.lower()}.{secrets.token_hex(4)}@example.com",
        chance.random() < 0.5,
    )


async def checkout(connection: AsyncConnection, chance: random.Random) -> int:
    """A customer orders one to three things that are in stock."""
    products = await _rows(
        connection,
        "SELECT id, price FROM shop.inventory WHERE stock >= 3 ORDER BY id FOR UPDATE SKIP LOCKED",
    )
    chosen = sorted(chance.sample(products, min(len(products), chance.randint(1, 3))))
    if not chosen:
        return 0
    items = [(product, chance.randint(1, 3), price) for product, price in chosen]
    [(order,)] = await _rows(
        connection,
        "INSERT INTO shop.orders (customer_id, total)"
        " SELECT id, %s FROM shop.customers ORDER BY md5(id::text || %s) LIMIT 1 RETURNING id",
        sum(quantity * price for _, quantity, price in items),
        secrets.token_hex(4),
    )
    written = 1
    for line, (product, quantity, price) in enumerate(items, 1):
        written += await _write(
            connection,
            "INSERT INTO shop.order_items (order_id, line, product_id, quantity, price) VALUES (%s, %s, %s, %s, %s)",
            order,
            line,
            product,
            quantity,
            price,
        )
        written += await _write(
            connection, "UPDATE shop.inventory SET stock = stock - %s WHERE id = %s", quantity, product
        )
    return written


async def pay(connection: AsyncConnection, chance: random.Random) -> int:
    """The oldest open order is paid for, a moment after it was placed."""
    paid = await _rows(
        connection,
        "UPDATE shop.orders SET status = 'paid' WHERE id = (SELECT id FROM shop.orders WHERE status = 'placed'"
        " AND placed_at < now() - interval '2 s' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, total",
    )
    for order, total in paid:
        await _write(
            connection,
            "INSERT INTO shop.payments (order_id, amount, card) VALUES (%s, %s, %s)",
            order,
            total,
            f"4000 0000 0000 {chance.randrange(10_000):04}",
        )
    return 2 * len(paid)


async def ship(connection: AsyncConnection, _chance: random.Random) -> int:
    """The oldest paid orders leave the house, one to three in one statement, when they are packed."""
    return await _write(
        connection,
        "UPDATE shop.orders SET status = 'shipped' WHERE id IN (SELECT id FROM shop.orders WHERE status = 'paid'"
        " AND placed_at < now() - interval '6 s' ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED)",
    )


async def refund(connection: AsyncConnection, _chance: random.Random) -> int:
    """The newest shipped order comes back: the money goes, the goods return."""
    orders = await _rows(
        connection,
        "UPDATE shop.orders SET status = 'refunded' WHERE id = (SELECT id FROM shop.orders WHERE status = 'shipped'"
        " ORDER BY id DESC LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
    )
    written = len(orders)
    for (order,) in orders:
        written += await _write(
            connection,
            "UPDATE shop.payments SET status = 'refunded' WHERE order_id = %s AND status = 'captured'",
            order,
        )
        written += await _write(
            connection,
            "UPDATE shop.inventory i SET stock = i.stock + o.quantity FROM shop.order_items o"
            " WHERE o.order_id = %s AND o.product_id = i.id",
            order,
        )
    return written


async def restock(connection: AsyncConnection, chance: random.Random) -> int:
    """Refill products that run low."""
    return await _write(
        connection,
        "UPDATE shop.inventory SET stock = stock + %s WHERE id IN"
        " (SELECT id FROM shop.inventory WHERE stock < 25 ORDER BY id LIMIT 4 FOR UPDATE SKIP LOCKED)",
        chance.choice((10, 20, 25)),
    )


async def reprice(connection: AsyncConnection, chance: random.Random) -> int:
    """Change one price by a few cents."""
    return await _write(
        connection,
        "UPDATE shop.inventory SET price = price + %s WHERE id ="
        " (SELECT id FROM shop.inventory ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)",
        chance.choice((0.05, 0.10, 0.50)),
    )


async def cancel(connection: AsyncConnection, _chance: random.Random) -> int:
    """Delete the oldest unpaid order; its goods return."""
    orders = await _rows(
        connection,
        "SELECT id FROM shop.orders WHERE status = 'placed' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
    )
    written = 0
    for (order,) in orders:
        written += await _write(
            connection,
            "UPDATE shop.inventory i SET stock = i.stock + o.quantity FROM shop.order_items o"
            " WHERE o.order_id = %s AND o.product_id = i.id",
            order,
        )
        written += await _write(connection, "DELETE FROM shop.order_items WHERE order_id = %s", order)
        written += await _write(connection, "DELETE FROM shop.orders WHERE id = %s", order)
    return written


ACTIONS: Final[tuple[tuple[Action, int], ...]] = (
    (checkout, 10),
    (pay, 9),
    (ship, 4),
    (restock, 3),
    (signup, 3),
    (reprice, 1),
    (refund, 1),
    (cancel, 1),
)


def choose(chance: random.Random) -> Action:
    """Choose the next transaction."""
    return chance.choices([action for action, _ in ACTIONS], [weight for _, weight in ACTIONS])[0]
