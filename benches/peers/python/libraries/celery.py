"""Celery on Redis."""

from celery import Celery
from redis import Redis

from common import QUEUE, URL, handle

app = Celery("peers", broker=URL)
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_prefetch_multiplier=100,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="order")
def order(payload):
    handle(payload)


class Producer:
    async def open(self):
        self.redis = Redis.from_url(URL)
        self.redis.ping()

    async def enqueue(self, payload):
        order.delay(payload)

    async def enqueue_batch(self, payloads):
        # It has no call for many.
        with app.producer_pool.acquire() as producer:
            for payload in payloads:
                order.apply_async((payload,), producer=producer)

    async def left(self):
        # Those that wait, and those that a worker has not acknowledged.
        return self.redis.llen(QUEUE) + self.redis.hlen("unacked")


def work():
    quiet = ["--loglevel", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["--quiet", "worker", "--pool", "solo", *quiet])
