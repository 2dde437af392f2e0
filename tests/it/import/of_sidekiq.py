"""Fills Redis with jobs as Sidekiq 8 writes them: Ruby's gems are not among what the tests install."""

import json
import os

import redis

store = redis.Redis.from_url(os.environ["REDIS_URL"])
payload = json.loads(os.environ["PAYLOAD"])


def job(jid, args, **others):
    named = {"retry": True, "queue": "mail", "class": "Billing::Charge", "args": args, "jid": jid}
    return json.dumps({**named, "created_at": 1764000000000, **others})


def push(queue, *jobs):
    store.sadd("queues", queue)
    for one in jobs:
        store.lpush(f"queue:{queue}", one)


failed = {"error_message": "not yet", "error_class": "RuntimeError", "failed_at": 1764000000000}
push(
    "mail",
    job("j-1", [payload, "ä", None], enqueued_at=1764000000001),
    job("j-3", [3], retry=False),
    job("j-4", [4], bid="b-1"),
    job("j-5", [{"job_class": "Greet", "arguments": ["Ann"]}], wrapped="Greet", retry=4,
        **{"class": "Sidekiq::ActiveJob::Wrapper"}),
    job("j-6", ["bad name"], **{"class": "Bad name"}),
    "no JSON",
)
push("other", job("j-7", [7], queue="other", retry=2))
store.zadd("schedule", {job("j-2", [2]): 1927627200.123})
store.zadd("retry", {job("j-8", [8], retry=5, retry_count=2, **failed): 1927630800.5})
store.zadd("dead", {job("j-9", [9], retry=5, retry_count=5, **failed): 1764000000.5})
