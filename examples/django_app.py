"""A Django application, in one file, whose writes say who made them, by which route, in which trace.

pip install django forge-changes
DATABASE_NAME=shop DATABASE_HOST=… python django_app.py runserver
curl -X POST 'http://127.0.0.1:8000/orders/118/pay' -u ada:lovelace
forge tail            # orders UPDATE 118   status: placed → paid   ada · POST /orders/<int:order_id>/pay

A project of more than one file adds the one line to MIDDLEWARE, and nothing else.
"""

import os
import sys
from base64 import b64decode

import django
from django.conf import settings
from django.http import HttpRequest, JsonResponse

settings.configure(
    DEBUG=False,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["forge.tracking.django.ContextMiddleware"],
    FORGE_USER=lambda request: named(request),  # without it: request.user, as django.contrib.auth knows it
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ.get("DATABASE_NAME", "shop"),
            "HOST": os.environ.get("DATABASE_HOST", ""),
            "PORT": os.environ.get("DATABASE_PORT", ""),
            "USER": os.environ.get("DATABASE_USER", ""),
            "PASSWORD": os.environ.get("DATABASE_PASSWORD", ""),
        }
    },
    USE_TZ=True,
)
django.setup()

from django.db import models  # noqa: E402  (models need settings)
from django.urls import path  # noqa: E402


class Order(models.Model):
    status = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


def named(request: HttpRequest) -> str | None:
    """Whoever says a name is believed: put your own check here."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return b64decode(credentials).decode().partition(":")[0] if scheme.lower() == "basic" else None


def pay(request: HttpRequest, order_id: int) -> JsonResponse:
    return JsonResponse({"paid": Order.objects.filter(pk=order_id).update(status="paid")})


urlpatterns = [path("orders/<int:order_id>/pay", pay)]

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
