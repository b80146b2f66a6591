"""The shop as an application: live queries and mutations for its two windows.

The counter shows the shelf, the office the newest orders; both show the day's numbers. An action is refused if another
user was faster, and the page reverts its optimistic update.
"""

from decimal import Decimal
from pathlib import Path
from typing import Any

from forge.app import Forge
from forge.errors import ForgeError
from forge.serve.node import Options

SHOWN = 16
"""The number of orders that the office shows."""


class TooLate(ForgeError):
    """Another user was faster."""


def application(url: str, lake: Path | None = None) -> Forge:
    """Return the shop on this database; the console also shows the lake, if there is one."""
    options = Options(lake=None if lake is None else str(lake))
    app = Forge(url, options=options, title="The shop of forge demo")

    @app.query(key="id", scope="public")
    async def shelf(ctx: Any) -> list[dict[str, Any]]:
        """What can be bought."""
        rows: list[dict[str, Any]] = await ctx.db.fetch("SELECT id, name, price, stock FROM shop.inventory ORDER BY id")
        return rows

    @app.query(key="id", scope="public")
    async def newest_orders(ctx: Any) -> list[dict[str, Any]]:
        """What was ordered last, whatever became of it."""
        rows: list[dict[str, Any]] = await ctx.db.fetch(
            "SELECT o.id, c.name AS customer, o.status, o.total FROM shop.orders o"
            " JOIN shop.customers c ON c.id = o.customer_id ORDER BY o.id DESC LIMIT %(shown)s",
            shown=SHOWN,
        )
        return rows

    @app.query(scope="public")
    async def today(ctx: Any) -> dict[str, Any]:
        """The numbers above the windows."""
        row: dict[str, Any] = await ctx.db.fetch_one(
            "SELECT count(*) FILTER (WHERE status = 'placed') AS placed,"
            " count(*) FILTER (WHERE status = 'paid') AS paid, count(*) FILTER (WHERE status = 'shipped') AS shipped,"
            " coalesce(sum(total) FILTER (WHERE status IN ('paid', 'shipped')), 0) AS takings FROM shop.orders"
        )
        return row

    @app.mutation
    async def order(ctx: Any, product_id: int) -> int:
        """A visitor buys one of something; returns the order's number."""
        price: Decimal | None = await ctx.db.fetch_value(
            "UPDATE shop.inventory SET stock = stock - 1 WHERE id = %(product_id)s AND stock > 0 RETURNING price"
        )
        if price is None:
            raise TooLate("that was the last one", fix="take something else")
        number: int = await ctx.db.fetch_value(
            "INSERT INTO shop.orders (customer_id, total) VALUES ((SELECT min(id) FROM shop.customers), %(price)s)"
            " RETURNING id",
            price=price,
        )
        await ctx.db.execute(
            "INSERT INTO shop.order_items (order_id, line, product_id, quantity, price)"
            " VALUES (%(number)s, 1, %(product_id)s, 1, %(price)s)",
            number=number,
            price=price,
        )
        return number

    @app.mutation
    async def pay(ctx: Any, order_id: int) -> None:
        """An order is paid for."""
        paid = await ctx.db.execute(
            "WITH paid AS (UPDATE shop.orders SET status = 'paid' WHERE id = %(order_id)s AND status = 'placed'"
            " RETURNING id, total) INSERT INTO shop.payments (order_id, amount, card)"
            " SELECT id, total, '4000 0000 0000 0000' FROM paid"
        )
        if not paid:
            raise TooLate(f"order {order_id} is paid or gone", fix="nothing is left to do")

    @app.mutation
    async def ship(ctx: Any, order_id: int) -> None:
        """A paid order leaves the house."""
        shipped = await ctx.db.execute(
            "UPDATE shop.orders SET status = 'shipped' WHERE id = %(order_id)s AND status = 'paid'"
        )
        if not shipped:
            raise TooLate(f"order {order_id} is shipped or not paid", fix="nothing is left to do")

    return app
