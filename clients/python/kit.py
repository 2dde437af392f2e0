"""The program under test: handlers whose every step a test can see, as JSON lines on standard output."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from typing import Any

from tenure import Cancel, Context, NewJob, Permanent, Retry, Snooze, SyncContext, Worker

SHOWN = ("ready", "began", "stopped", "settled", "lost")


class Shown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if (event := getattr(record, "event", None)) in SHOWN:
            names = ("worker", "job", "kind", "attempt", "token", "why")
            line = {name: getattr(record, name) for name in names if hasattr(record, name)}
            print(json.dumps({"event": event, **line}), flush=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def worker(queue: str, slots: int) -> Worker:
    grace = int(os.environ.get("TENURE_SHUTDOWN_GRACE_MS", "10000")) / 1000
    w = Worker(
        os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        queue,
        slots=slots,
        grace=grace,
        prefix=os.environ.get("TENURE_SUBJECT_PREFIX", "jobs"),
        inbox_prefix=os.environ.get("TENURE_NATS_INBOX_PREFIX"),
    )

    @w.handle("echo")
    async def echo(job: Any, ctx: Context) -> Any:
        return job

    @w.handle("report")
    async def report(job: Any, ctx: Context) -> Any:
        n = job["reports"]
        for i in range(1, n + 1):
            await ctx.progress("working", 100 * i / n, f"{i} of {n}", checkpoint={"i": i})
            await asyncio.sleep(job["every_ms"] / 1000)
        return {"from": ctx.checkpoint}

    @w.handle("resume")
    async def resume(job: Any, ctx: Context) -> Any:
        if ctx.checkpoint is None:
            await ctx.progress(checkpoint={"i": 3})
            await ctx.flush()
            die()
        return {"from": ctx.checkpoint}

    @w.handle("retry")
    async def retry(job: Any, ctx: Context) -> Any:
        if ctx.attempt == 1:
            after = job.get("after_ms")
            raise Retry("not yet", after=None if after is None else after / 1000)
        return {"attempt": ctx.attempt}

    @w.handle("error")
    async def error(job: Any, ctx: Context) -> Any:
        if ctx.attempt == 1:
            raise ValueError("boom")
        return {"attempt": ctx.attempt}

    @w.handle("fail")
    async def fail(job: Any, ctx: Context) -> Any:
        raise Permanent("no attempt could mend it")

    @w.handle("snooze")
    async def snooze(job: Any, ctx: Context) -> Any:
        if ctx.checkpoint is None:
            await ctx.progress(checkpoint={"snoozed": True})
            await ctx.flush()
            raise Snooze(job["ms"] / 1000)
        return {"attempt": ctx.attempt}

    @w.handle("cancel")
    async def cancel(job: Any, ctx: Context) -> Any:
        raise Cancel("not needed")

    @w.handle("sleep")
    async def sleep(job: Any, ctx: Context) -> Any:
        until = time.monotonic() + job["ms"] / 1000
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, (job["every_ms"] or 1e9) / 1000))
            if job["every_ms"]:
                await ctx.progress("sleeping")
        return "slept"

    @w.handle("block")
    def block(job: Any, ctx: SyncContext) -> Any:
        until = time.monotonic() + job["ms"] / 1000
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, (job["every_ms"] or 1e9) / 1000))
            if job["every_ms"]:
                ctx.progress("blocking")
        return "slept"

    @w.handle("crash")
    async def crash(job: Any, ctx: Context) -> Any:
        if ctx.attempt == 1:
            die()
        return {"attempt": ctx.attempt}

    @w.handle("slow", timeout=1)
    async def slow(job: Any, ctx: Context) -> Any:
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        return {"attempt": ctx.attempt}

    @w.handle("once_key")
    async def once_key(job: Any, ctx: Context) -> Any:
        return {"key": ctx.key("x"), "again": ctx.key("x")}

    @w.handle("steps")
    async def steps(job: Any, ctx: Context) -> Any:
        one = await ctx.step("one", lambda: {"token": ctx.token})
        await ctx.sleep("nap", job["ms"] / 1000)
        go = await ctx.event("go")
        parts = await ctx.all("parts", [NewJob("echo", {"n": n}) for n in job["parts"]])
        late = await ctx.event_within("never", 0.001, default="late")
        return {"one": one, "go": go, "parts": parts, "late": late, "attempt": ctx.attempt, "token": ctx.token}

    @w.handle("steps_sync")
    def steps_sync(job: Any, ctx: SyncContext) -> Any:
        one = ctx.step("one", lambda: {"token": ctx.token})
        ctx.sleep("nap", job["ms"] / 1000)
        go = ctx.event("go")
        parts = ctx.all("parts", [NewJob("echo", {"n": n}) for n in job["parts"]])
        late = ctx.event_within("never", 0.001, default="late")
        return {"one": one, "go": go, "parts": parts, "late": late, "attempt": ctx.attempt, "token": ctx.token}

    @w.handle("steps_crash")
    async def steps_crash(job: Any, ctx: Context) -> Any:
        one = await ctx.step("one", lambda: {"token": ctx.token})
        if ctx.token == 1:
            die()
        return {"one": one, "attempt": ctx.attempt, "token": ctx.token}

    @w.handle("follow")
    async def follow(job: Any, ctx: Context) -> Any:
        return {"outputs": await ctx.outputs(), "failed": await ctx.failed_before()}

    stamps = bool(os.environ.get("TENURE_KIT_STAMP"))

    @w.handle("order")
    async def order(job: Any, ctx: Context) -> Any:
        began = time.time_ns() // 1000
        sum(line["quantity"] * line["cents"] for line in job["lines"])
        return began if stamps else None

    return w


if __name__ == "__main__":
    is_quiet = bool(os.environ.get("TENURE_KIT_QUIET"))
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING if is_quiet else logging.INFO)
    if not is_quiet:
        logging.getLogger("tenure").setLevel(logging.DEBUG)
        logging.getLogger("tenure").addHandler(Shown())
    worker(sys.argv[1], int(sys.argv[2])).run()
