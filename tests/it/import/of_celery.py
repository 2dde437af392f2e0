"""Fills Redis with tasks of Celery, through its own API. A consumer reserves one, and dies."""

import json
import os
from datetime import datetime, timezone

from celery import Celery, chain

app = Celery(broker=os.environ["REDIS_URL"])
later = datetime(2031, 1, 31, 12, 0, 0, 123000, tzinfo=timezone.utc)
payload = json.loads(os.environ["PAYLOAD"])
app.send_task("shop.tasks.slow", args=[7], queue="slow", task_id="t-7")
with app.connection_for_read() as connection:
    connection.SimpleQueue("slow").get(timeout=5)
    app.send_task("shop.tasks.send", args=[1, payload], kwargs={"to": "ä"}, queue="mail", task_id="t-1")
    app.send_task("shop.tasks.send", kwargs={"n": 2}, queue="mail", task_id="t-2", eta=later, retries=2)
    app.send_task("shop.tasks.send", kwargs={"n": 3}, queue="mail", task_id="t-3", priority=6)
    app.send_task("shop.tasks.old", kwargs={"n": 4}, queue="mail", task_id="t-4",
                  expires=datetime(2020, 1, 1, tzinfo=timezone.utc))
    app.send_task("shop tasks", kwargs={"n": 5}, queue="mail", task_id="t-5")
    app.send_task("shop.tasks.send", kwargs={"n": 6}, queue="mail", task_id="t-6", compression="zlib")
    chain(app.signature("shop.tasks.send", args=[8], queue="mail", task_id="t-8"), app.signature("shop.tasks.next")).delay()
    # Without its end, which would put the reserved task back.
    os._exit(0)
