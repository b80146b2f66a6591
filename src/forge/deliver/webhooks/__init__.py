"""Webhooks: signed HTTP requests to endpoints that an application declares or the database stores.

app.deliver("crm", to=Webhook("https://crm.example.com/hook", secret=SECRET), tables=["orders"])
forge webhooks add crm https://crm.example.com/hook --table orders
"""

from forge.deliver.webhooks.endpoints import Endpoint, Endpoints
from forge.deliver.webhooks.signature import new_secret, verify
from forge.deliver.webhooks.webhook import Webhook
from forge.errors import SignatureInvalid

__all__ = ["Endpoint", "Endpoints", "SignatureInvalid", "Webhook", "new_secret", "verify"]
