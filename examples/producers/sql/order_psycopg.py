#!/usr/bin/env python3
"""Places an order, and enqueues its confirmation in the same transaction: order_psycopg.py MAIL

    pip install 'psycopg[binary]'
"""

import os
import sys

import psycopg
from psycopg.types.json import Jsonb


# ANCHOR: place
def place(db: psycopg.Connection, mail: str):
    """Both exist, or neither: leaving the block commits, an error rolls back."""
    with db.transaction():
        order = db.execute("INSERT INTO orders (mail) VALUES (%s) RETURNING id", (mail,)).fetchone()[0]
        job = db.execute(
            "SELECT tenure.enqueue('mail', 'confirm', %s, unique_key => %s)",
            (Jsonb({"order": order}), f"order-{order}"),
        ).fetchone()[0]
        if "@" not in mail:
            raise ValueError(f"{mail} is no address")
        return job
# ANCHOR_END: place


with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    print(place(connection, sys.argv[1]))
