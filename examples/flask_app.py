"""A Flask application whose writes say who made them, by which route, in which trace.

pip install flask forge-changes
DATABASE_URL=postgresql://… flask --app flask_app run
curl -X POST 'http://127.0.0.1:5000/orders/118/pay' -u ada:lovelace
forge tail            # orders UPDATE 118   status: placed → paid   ada · POST /orders/<int:order_id>/pay
"""

import os

import psycopg
from flask import Flask, g, request

import forge

app = Flask(__name__)
app.wsgi_app = forge.WsgiContextMiddleware(  # type: ignore[method-assign]
    app.wsgi_app, user=lambda environ: g.get("user_id")
)


@app.before_request
def authenticate() -> None:
    """Whoever says a name is believed: put your own check here."""
    if request.authorization is not None:
        g.user_id = request.authorization.username


@app.post("/orders/<int:order_id>/pay")
def pay(order_id: int) -> dict[str, int]:
    with (
        psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection,
        forge.transaction(connection, order=order_id),
    ):
        done = connection.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    return {"paid": done.rowcount}
