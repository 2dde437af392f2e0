#!/usr/bin/env python3
"""Moves the jobs that wait in Sidekiq or Celery, on Redis, into tenure. docs/coming-from.md tells of it.

    pip install redis 'psycopg[binary]'
    from_redis.py sidekiq --dry-run                  # every queue, and the sets `schedule` and `retry`
    from_redis.py celery --queue celery --queue mail

Environment: DATABASE_URL, the database of tenure; REDIS_URL (redis://127.0.0.1:6379/0).

Redis and Postgres have no transaction in common, so each job goes in three steps, and each may be repeated:
it moves into a list of this program's own within Redis, `tenure:import:…`; a transaction enqueues it into tenure with
a unique key made of its id; it leaves that list. A program that dies in between is run again: it begins with its own
lists.
A job that cannot be moved stays where it is, and the program says why.
"""

import argparse
import base64
import collections
import json
import os
import sys
from datetime import datetime, timezone

import psycopg
import redis
from psycopg.types.json import Jsonb

HELD = "tenure:import:"
BATCH = 1_000
# Celery's lists of one queue, by priority: the queue's name alone, then with these numbers.
PRIORITY_SEPARATOR = "\x06\x16"

# Each takes one member out of where it waits and puts it elsewhere, unless it has left: a worker may have taken it.
MOVE_IN_LIST = """
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
return redis.call(ARGV[2], KEYS[2], ARGV[1])
"""
MOVE_IN_SET = """
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], score, ARGV[1])
return 1
"""

Job = collections.namedtuple("Job", "queue kind payload run_at attempts key")


class Stays(Exception):
    """Of which kind a job is that stays where it is, and why."""


def moment(text):
    """A time of Celery, which is UTC if it has no zone."""
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=timezone.utc)


# ANCHOR: sidekiq
def from_sidekiq(raw, score, place, options):
    """A job of Sidekiq, from a list or from the sets `schedule`, `retry` and `dead`, whose score is its time."""
    message = json.loads(raw)
    kind, args = message["class"], message["args"]
    if message.get("encrypt"):
        raise Stays(kind, "its last argument is encrypted")
    if message.get("bid"):
        raise Stays(kind, "it belongs to a batch")
    if message.get("wrapped"):
        # Active Job's own name and arguments.
        kind, args = message["wrapped"], args[0]["arguments"]
    limit = message.get("retry", True)
    limit = options.max_retries if limit is True else int(limit or 0)
    made = message["retry_count"] + 1 if "retry_count" in message else 0
    meta = {name: value for name, value in message.items() if name not in ("args", "error_backtrace")}
    return Job(
        queue=message.get("queue", "default"),
        kind=kind,
        payload={"args": args, "meta": meta},
        run_at=datetime.fromtimestamp(score, timezone.utc) if place in ("schedule", "retry") else None,
        attempts=1 if place == "dead" else max(1, limit + 1 - made),
        key=f"sidekiq-{message['jid']}",
    )
# ANCHOR_END: sidekiq


# ANCHOR: celery
def from_celery(raw, _score, place, options):
    """A task of Celery: an envelope of kombu with a JSON body."""
    message = json.loads(raw)
    headers = message.get("headers") or {}
    kind = headers.get("task", "?")
    if headers.get("compression"):
        raise Stays(kind, "its body is compressed")
    if message.get("content-type") != "application/json":
        raise Stays(kind, f"its body is {message.get('content-type')}, not JSON")
    body = message["body"]
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    body = json.loads(body)
    if isinstance(body, dict):
        # Protocol 1 has all in the body.
        headers, args, kwargs, canvas = body, body.get("args", []), body.get("kwargs", {}), body
    else:
        args, kwargs, canvas = body
    if any(canvas.get(name) for name in ("callbacks", "errbacks", "chain", "chord", "taskset")) or headers.get("group"):
        raise Stays(headers["task"], "it belongs to a group, a chain or a chord")
    expires = headers.get("expires")
    if expires and moment(expires) < datetime.now(timezone.utc):
        raise Stays(headers["task"], "it has expired")
    named = ("id", "retries", "expires", "root_id", "parent_id", "origin", "timelimit")
    meta = {name: headers[name] for name in named if headers.get(name) is not None}
    return Job(
        queue=place.split(PRIORITY_SEPARATOR)[0],
        kind=headers["task"],
        payload={"args": args, "kwargs": kwargs, "meta": meta},
        run_at=moment(headers["eta"]) if headers.get("eta") else None,
        attempts=max(1, options.max_retries + 1 - headers.get("retries", 0)),
        key=f"celery-{headers['id']}",
    )
# ANCHOR_END: celery


class Place:
    """A list or a sorted set of messages, and this program's own beside it."""

    def __init__(self, store, name, key, is_set):
        self.store, self.name, self.is_set = store, name, is_set
        self.key, self.held = key, HELD + key
        self.script = store.register_script(MOVE_IN_SET if is_set else MOVE_IN_LIST)

    def window(self, key, skip):
        """Up to a batch of messages with their scores, the oldest first, after those that `skip` counts."""
        if self.is_set:
            return self.store.zrange(key, skip, skip + BATCH - 1, withscores=True)
        oldest_last = self.store.lrange(key, -skip - BATCH, -skip - 1)
        return [(raw, None) for raw in reversed(oldest_last)]

    def take(self, raws):
        """Moves messages into the own list, and says of each whether it was still there."""
        return self.move(raws, self.key, self.held, "LPUSH")

    def give_back(self, raws):
        """Puts messages back to where a worker takes the next one."""
        self.move(raws[::-1], self.held, self.key, "RPUSH")

    def move(self, raws, source, target, command):
        # Nothing of a pipeline needs to be one: a message is in one place or the other.
        with self.store.pipeline(transaction=False) as pipeline:
            for raw in raws:
                self.script(keys=[source, target], args=[raw, command], client=pipeline)
            return pipeline.execute()

    def forget(self, raws):
        with self.store.pipeline(transaction=False) as pipeline:
            for raw in raws:
                pipeline.zrem(self.held, raw) if self.is_set else pipeline.lrem(self.held, -1, raw)
            pipeline.execute()


class Importer:
    def __init__(self, options, store, database):
        self.options, self.store, self.database = options, store, database
        self.read = from_sidekiq if options.source == "sidekiq" else from_celery
        self.moved, self.known, self.stays = (collections.Counter() for _ in range(3))

    def places(self):
        prefix = self.options.key_prefix
        if self.options.source == "celery":
            steps = ["", *(f"{PRIORITY_SEPARATOR}{step}" for step in (3, 6, 9))]
            names = [queue + step for queue in self.options.queue or ["celery"] for step in steps]
            return [Place(self.store, name, prefix + name, False) for name in names]
        queues = self.options.queue or sorted(queue.decode() for queue in self.store.smembers(prefix + "queues"))
        sets = ["schedule", "retry", *(["dead"] if self.options.dead else [])]
        lists = [Place(self.store, queue, f"{prefix}queue:{queue}", False) for queue in queues]
        return lists + [Place(self.store, name, prefix + name, True) for name in sets]

    def job(self, place, raw, score):
        """The job that a message is, or None if it stays."""
        queue, kind = place.name.split(PRIORITY_SEPARATOR)[0], "?"
        try:
            job = self.read(raw, score, place.name, self.options)
            queue, kind = job.queue, job.kind
            if place.is_set and self.options.queue and queue not in self.options.queue:
                return None
            queue = self.options.into or self.options.queues.get(queue, queue)
            return job._replace(queue=queue, kind=self.options.kinds.get(kind, kind))
        except Stays as stays:
            self.stays[queue, *stays.args] += 1
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self.stays[queue, kind, f"it is no message of {self.options.source}: {error!r}"] += 1
        return None

    def enqueue(self, jobs):
        """Enqueues (raw, job) pairs and commits, unless for a dry run. Returns those that tenure refused, and why."""
        try:
            with self.database.transaction(force_rollback=self.options.dry_run):
                keys = [(job.queue, job.key) for _, job in jobs]
                held = self.database.execute(
                    "SELECT scope, key FROM tenure.job_keys JOIN unnest(%s::text[], %s::text[]) AS u(scope, key) "
                    "USING (scope, key)",
                    [[queue for queue, _ in keys], [key for _, key in keys]],
                ).fetchall()
                self.database.execute("SELECT tenure.enqueue_many(%s)", [Jsonb([fields(job) for _, job in jobs])])
        except psycopg.Error as error:
            # An invalid job, \u0000 or NaN in it, a queue that is full: the others are moved.
            if error.sqlstate not in ("TN003", "TN004", "22P02", "22P05"):
                raise
            if len(jobs) == 1:
                what = (error.diag.message_primary or str(error)).removeprefix("jobs[0]: ")
                is_name = "is not a valid name" in what
                hint = "Rename it: --rename-queue, --rename-kind, --into." if is_name else error.diag.message_hint
                return [(*jobs[0], f"{what} ({hint})" if hint else what)]
            middle = len(jobs) // 2
            return self.enqueue(jobs[:middle]) + self.enqueue(jobs[middle:])
        seen = set(held)
        for key, (_, job) in zip(keys, jobs):
            (self.known if key in seen else self.moved)[job.queue, job.kind] += 1
            seen.add(key)
        return []

    def finish(self, place, jobs):
        """Enqueues jobs whose messages are in the own list, then removes these. Returns how many stay after all."""
        if not jobs:
            return 0
        back = self.count_refused(self.enqueue(jobs))
        place.forget([raw for raw, _ in jobs if raw not in set(back)])
        place.give_back(back)
        return len(back)

    def count_refused(self, refused):
        self.stays.update((job.queue, job.kind, why) for _, job, why in refused)
        return [raw for raw, _, _ in refused]

    def empty(self, place):
        """Moves what waits in a place."""
        # What an earlier run has left in the own list. A message that does not fit goes back.
        while not self.options.dry_run:
            window = place.window(place.held, 0)
            if not window:
                break
            jobs = [(raw, self.job(place, raw, score)) for raw, score in window]
            place.give_back([raw for raw, job in jobs if job is None])
            self.finish(place, [(raw, job) for raw, job in jobs if job])
        # What stays is at the old end, and is not looked at again.
        skip = 0
        while window := place.window(place.key, skip):
            jobs = [(raw, self.job(place, raw, score)) for raw, score in window]
            fit = [(raw, job) for raw, job in jobs if job]
            skip += len(window) - len(fit)
            if self.options.dry_run:
                self.count_refused(self.enqueue(fit) if fit else [])
                skip += len(fit)
            else:
                taken = place.take([raw for raw, _ in fit])
                skip += self.finish(place, [(raw, job) for (raw, job), is_taken in zip(fit, taken) if is_taken])

    def run(self):
        for place in self.places():
            self.empty(place)
        verb = "would move" if self.options.dry_run else "moved"
        for (queue, kind), jobs in sorted(self.moved.items()):
            print(f"{verb} {jobs} of kind {kind} into queue {queue}")
        for (queue, kind), jobs in sorted(self.known.items()):
            print(f"already in tenure, with the same id: {jobs} of kind {kind} in queue {queue}")
        for (queue, kind, why), jobs in sorted(self.stays.items()):
            print(f"left {jobs} of kind {kind} in queue {queue}: {why}")
        if self.options.source == "celery" and (reserved := self.store.hlen(self.options.key_prefix + "unacked")):
            print(f"left {reserved} that workers have reserved: stop the workers with SIGTERM, and run this again")
        if not (self.moved or self.known or self.stays):
            print("nothing waits")


def fields(job):
    named = {"queue": job.queue, "kind": job.kind, "payload": job.payload, "unique_key": job.key}
    return {**named, "run_at": job.run_at and job.run_at.isoformat(), "max_attempts": min(1000, job.attempts)}


def pair(text):
    name, equals, other = text.rpartition("=")
    if not (equals and name and other):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return name, other


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", choices=["sidekiq", "celery"])
    every = "a queue to move; default: every one of Sidekiq, `celery` of Celery"
    parser.add_argument("--queue", action="append", help=every)
    parser.add_argument("--into", help="tenure's queue for all of the jobs")
    parser.add_argument("--rename-queue", type=pair, action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--rename-kind", type=pair, action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--max-retries", type=int, help="of jobs that do not say: default 25 of Sidekiq, 3 of Celery")
    parser.add_argument("--key-prefix", default="", help="before each key in Redis: a namespace, global_keyprefix")
    parser.add_argument("--dead", action="store_true", help="try Sidekiq's dead jobs once more")
    parser.add_argument("--dry-run", action="store_true", help="say what would be moved, and move nothing")
    options = parser.parse_args()
    options.queues, options.kinds = dict(options.rename_queue), dict(options.rename_kind)
    if options.max_retries is None:
        options.max_retries = 25 if options.source == "sidekiq" else 3
    if "DATABASE_URL" not in os.environ:
        parser.error("DATABASE_URL is not set: the database of tenure")
    store = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"))
    # Behind PgBouncer no statement is prepared.
    try:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=None) as database:
            Importer(options, store, database).run()
    except psycopg.errors.UndefinedTable as error:
        sys.exit(f"{error}\nRun `tenure migrate` on the database that DATABASE_URL names.")
    except (psycopg.Error, redis.RedisError) as error:
        sys.exit(f"{error}\nNo job is lost: run this again, and it goes on from here.")


if __name__ == "__main__":
    main()
