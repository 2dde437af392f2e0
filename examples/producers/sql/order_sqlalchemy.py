#!/usr/bin/env python3
"""Places an order, and enqueues its confirmation in the same transaction: order_sqlalchemy.py MAIL

    pip install SQLAlchemy 'psycopg[binary]'
"""

import os
import sys

from sqlalchemy import cast, create_engine, func, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    mail: Mapped[str]


# ANCHOR: place
def place(session: Session, mail: str):
    """Both exist, or neither: leaving the block commits, an error rolls back."""
    with session.begin():
        order = Order(mail=mail)
        session.add(order)
        session.flush()
        # The arguments stand in the order of tenure.enqueue.
        payload = cast({"order": order.id}, JSONB)
        job = session.scalar(select(func.tenure.enqueue("mail", "confirm", payload, f"order-{order.id}")))
        if "@" not in mail:
            raise ValueError(f"{mail} is no address")
        return job
# ANCHOR_END: place


url = os.environ["DATABASE_URL"].replace("postgres://", "postgresql://", 1)
engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
with Session(engine) as of_engine:
    print(place(of_engine, sys.argv[1]))
