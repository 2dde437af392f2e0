"""Dramatiq on Redis."""

import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from common import IS_PICKUP, QUEUE, URL, handle

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def order(payload):
    handle(payload)


class Producer:
    async def open(self):
        broker.client.ping()

    async def enqueue(self, payload):
        order.send(payload)

    async def enqueue_batch(self, payloads):
        # It has no call for many.
        for payload in payloads:
            order.send(payload)

    async def left(self):
        # A message stays there until it is acknowledged.
        return broker.client.hlen(f"dramatiq:{QUEUE}.msgs")


def work():
    dramatiq.Worker(broker, worker_threads=1, worker_timeout=4 if IS_PICKUP else 1000).start()
    threading.Event().wait()
