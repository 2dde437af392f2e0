"""arq on Redis."""

import asyncio

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from common import IS_PICKUP, QUEUE, URL, handle, shared

SETTINGS = RedisSettings.from_dsn(URL)


async def order(_, payload):
    handle(payload)


class Producer:
    async def open(self):
        self.redis = await create_pool(SETTINGS, default_queue_name=QUEUE)

    async def enqueue(self, payload):
        await self.redis.enqueue_job("order", payload)

    async def enqueue_batch(self, payloads):
        # It has no call for many.
        await shared(self.enqueue, payloads)

    async def left(self):
        # A job stays there until it has ended.
        return await self.redis.zcard(QUEUE)


def work():
    asyncio.set_event_loop(uvloop.new_event_loop())
    worker = Worker(
        [func(order, keep_result=0)],
        queue_name=QUEUE,
        redis_settings=SETTINGS,
        max_jobs=100,
        poll_delay=0.001 if IS_PICKUP else 0.01,
        log_results=False,
        handle_signals=False,
    )
    worker.run()
