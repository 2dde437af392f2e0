#!/usr/bin/env python3
"""Places an order, and enqueues its confirmation in the same transaction: order_django.py MAIL

    pip install Django 'psycopg[binary]'
"""

import os
import sys
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname,
            "PORT": url.port,
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402: Django wants its settings first
from psycopg.types.json import Jsonb  # noqa: E402


class Order(models.Model):
    mail = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "orders"
        managed = False


# ANCHOR: place
@transaction.atomic
def place(mail: str):
    """Both exist, or neither: leaving the function commits, an error rolls back."""
    order = Order.objects.create(mail=mail)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tenure.enqueue('mail', 'confirm', %s, unique_key => %s)",
            [Jsonb({"order": order.id}), f"order-{order.id}"],
        )
        job = cursor.fetchone()[0]
    if "@" not in mail:
        raise ValueError(f"{mail} is no address")
    return job
# ANCHOR_END: place


print(place(sys.argv[1]))
