"""Handlers that end as none should: their jobs must end all the same, and the worker go on."""

import asyncio
import json
import logging
import os
import sys
import time
from datetime import timedelta
from typing import Any

from tenure import Context, Item, LogHandler, Permanent, Retry, Snooze, SyncContext, Worker


class Odd(BaseException):
    """No exception that `except Exception` catches."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


w = Worker(os.environ["NATS_URL"], sys.argv[1], slots=int(sys.argv[2]), prefix=os.environ["TENURE_SUBJECT_PREFIX"])


kept = LogHandler()
kept.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
logging.getLogger("own").addHandler(kept)


@w.handle("logs")
async def logs(job: Any, ctx: Context) -> None:
    ctx.log(f"{job} by the context")
    await asyncio.sleep(0.1)
    logging.getLogger("own").warning("%s by logging", job)


@w.handle("logs_thread")
def logs_thread(job: Any, ctx: SyncContext) -> None:
    ctx.log(f"{job} by the context\r\n")
    time.sleep(0.1)
    logging.getLogger("own").warning("%s by logging", job)


@w.handle_batch("logs_batch", up_to=min(2, w.slots), within=30)
async def logs_batch(items: list[Item]) -> list[Any]:
    for item in items:
        logging.getLogger("own").warning("%s by logging", item.payload)
        item.context.log(item.payload)
    return [None for _ in items]


@w.handle("logs_refused")
async def logs_refused(job: Any, ctx: Context) -> None:
    ctx.log(5)
    await ctx.progress("s", "no percentage")  # type: ignore[arg-type]
    raise Permanent("as planned")


@w.handle("logs_quiet")
async def logs_quiet(job: Any, ctx: Context) -> None:
    ctx.log("once")
    while not os.path.exists(job):
        await asyncio.sleep(0.05)


@w.handle("logs_large")
async def logs_large(job: Any, ctx: Context) -> Any:
    if ctx.attempt == 2:
        return len(ctx.checkpoint)
    await ctx.progress(checkpoint="x" * 1_000_000)
    ctx.log("y" * 60_000)
    raise Retry("as planned", after=0)


@w.handle("logs_much")
async def logs_much(job: Any, ctx: Context) -> None:
    for n in range(20_000):
        ctx.log(f"ä {n}")


@w.handle("odd", keepalive=True)
async def odd(job: Any, ctx: Context) -> Any:
    raise Odd("no ordinary exception")


@w.handle("odd_thread")
def odd_thread(job: Any, ctx: SyncContext) -> Any:
    raise Odd("no ordinary exception")


@w.handle("stops")
def stops(job: Any, ctx: SyncContext) -> Any:
    return next(iter([]))


@w.handle("mute")
async def mute(job: Any, ctx: Context) -> Any:
    raise Mute


@w.handle("exits")
async def exits(job: Any, ctx: Context) -> Any:
    sys.exit(3)


@w.handle("own_cancel")
async def own_cancel(job: Any, ctx: Context) -> Any:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


@w.handle("no_time")
async def no_time(job: Any, ctx: Context) -> Any:
    raise Retry("not yet", after=float("nan"))


@w.handle("past")
async def past(job: Any, ctx: Context) -> Any:
    if ctx.attempt == 1:
        raise Retry("not yet", after=timedelta(seconds=-3))
    if ctx.checkpoint is None:
        await ctx.progress(checkpoint=1)
        await ctx.flush()
        raise Snooze(timedelta(milliseconds=1))
    return ctx.attempt


@w.handle("changes")
async def changes(job: Any, ctx: Context) -> Any:
    output: dict[str, Any] = {"n": 1}
    asyncio.get_running_loop().call_soon(output.update, {"n": {2}})
    return output


@w.handle("no_json")
async def no_json(job: Any, ctx: Context) -> Any:
    return {1, 2}


async def later(job: Any) -> Any:
    await asyncio.sleep(0)
    return job


w.handle("lambda")(lambda job, ctx: later(job))


class Callable:
    async def __call__(self, job: Any, ctx: Context) -> Any:
        await ctx.progress("called")
        return job


w.handle("callable")(Callable())


@w.handle("wide")
async def wide(job: Any, ctx: Context) -> Any:
    await ctx.progress(message="half a pair: \ud83d", checkpoint="漢" * 200_000)
    await ctx.flush()
    return "漢" * 200_000


@w.handle("refused")
def refused(job: Any, ctx: SyncContext) -> Any:
    ctx.progress(checkpoint="\ud83d")
    ctx.flush()


@w.handle("slow_step")
def slow_step(job: Any, ctx: SyncContext) -> Any:
    ctx.progress(message="begins")
    ctx.flush()
    ctx.step("one", lambda: time.sleep(1.5))
    ctx.progress()


@w.handle("echo")
async def echo(job: Any, ctx: Context) -> Any:
    return job


BATCHES: list[int] = []
MOST = min(16, int(sys.argv[2]))


def verdict(job: Any) -> Any:
    if job["does"] == "wait":
        return "saw the cancellation"
    # Each call gets the payload as it was.
    n = job.pop("n")
    return Permanent("too long") if job["does"] == "fail" else {"n": n, "calls": len(BATCHES), "first": job["first"]}


@w.handle_batch("batch", up_to=MOST, within=1.0)
async def batch(items: list[Item]) -> list[Any]:
    BATCHES.append(len(items))
    for item in items:
        await item.context.progress("together", 50)
        item.payload["first"] = await item.context.step("first", lambda: len(BATCHES))
    does = {item.payload["does"] for item in items}
    if "abort" in does:
        os.abort()
    if "raise" in does:
        raise ValueError("all of them")
    if "wait" in does:
        while not items[0].context.cancelled:
            await asyncio.sleep(0.01)
    return [verdict(item.payload) for item in items]


@w.handle_batch("batch_sync", up_to=MOST, within=1.0)
def batch_sync(items: list[Item]) -> list[Any]:
    BATCHES.append(len(items))
    if items[0].payload["does"] == "short":
        return []
    for item in items:
        item.payload["first"] = item.context.step("first", lambda: len(BATCHES))
    does = {item.payload["does"] for item in items}
    if "wait" in does and any(item.payload["n"] == 0 for item in items):
        # Until the first is cancelled, which its own context tells the handler.
        while True:
            time.sleep(0.01)
            for item in items:
                item.context.progress("together", 50)
    if any(item.payload["does"] == "raise" for item in items):
        raise ValueError("all of them")
    return [verdict(item.payload) for item in items]


async def main() -> None:
    served = asyncio.ensure_future(w.serve())
    while not hasattr(w, "_take_max"):
        await asyncio.sleep(0.01)
    print(json.dumps({"event": "ready", "worker": w.worker}), flush=True)
    await served


asyncio.run(main())
