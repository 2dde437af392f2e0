"""RQ on Redis."""

from redis import Redis
from rq import Queue, SimpleWorker

from common import QUEUE, URL, handle


def order(payload):
    handle(payload)


class Producer:
    async def open(self):
        self.queue = Queue(QUEUE, connection=Redis.from_url(URL))

    async def enqueue(self, payload):
        self.queue.enqueue(order, payload, result_ttl=0)

    async def enqueue_batch(self, payloads):
        jobs = [Queue.prepare_data(order, (payload,), result_ttl=0) for payload in payloads]
        self.queue.enqueue_many(jobs)

    async def left(self):
        return self.queue.count + self.queue.started_job_registry.count


def work():
    redis = Redis.from_url(URL)
    worker = SimpleWorker([Queue(QUEUE, connection=redis)], connection=redis, log_job_description=False)
    worker.work(logging_level="WARNING")
