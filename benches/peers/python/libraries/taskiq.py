"""Taskiq on Redis, with its broker that has acknowledgements."""

import uvloop
from redis.asyncio import Redis
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from common import QUEUE, URL, handle, shared

# From the first job on, which is there before the worker.
broker = RedisStreamBroker(URL, queue_name=QUEUE, consumer_id="0")


@broker.task("order")
async def order(payload):
    handle(payload)


class Producer:
    async def open(self):
        self.redis = Redis.from_url(URL)
        await broker.startup()

    async def enqueue(self, payload):
        await order.kiq(payload)

    async def enqueue_batch(self, payloads):
        # It has no call for many.
        await shared(self.enqueue, payloads)

    async def left(self):
        # Those that no worker has read, and those that none has acknowledged.
        (group,) = await self.redis.xinfo_groups(QUEUE)
        return group["lag"] + group["pending"]


def work():
    uvloop.run(run_receiver_task(broker, max_async_tasks=100, run_startup=True))
