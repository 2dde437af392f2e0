"""A worker of a chaos run in Python. What it does for a job stands in the job's row, under its token."""

import asyncio
import os
import signal
import sys
import time
import uuid
from typing import Any

from tenure import Context, Permanent, Retry, Snooze, Worker

worker = Worker(os.environ["NATS_URL"], sys.argv[1], slots=int(sys.argv[2]), grace=2)


@worker.handle("task")
async def task(job: Any, ctx: Context) -> Any:
    first = ctx.token == 1
    ctx.log(f"token {ctx.token}")
    steps = job["lasts_ms"] // 50
    for step in range(steps):
        await ctx.progress("working", 100 * step / steps, f"token {ctx.token}", checkpoint={"step": step})
        await asyncio.sleep(0.05)
    more = {}
    match job["act"]:
        case "fails at first" if ctx.attempt < 3:
            raise Retry("as planned", after=0.2)
        case "never":
            raise Permanent("as planned")
        case "panics" if ctx.attempt < 4:
            raise ValueError("as planned")
        case "panics":
            raise Permanent("as planned, at last")
        case "aborts at first" if first:
            os.kill(os.getpid(), signal.SIGKILL)
        case "snoozes" if first:
            raise Snooze(0.7)
        case "steps":
            more["drawn"] = await ctx.step("draw", lambda: str(uuid.uuid4()))
            await ctx.sleep("pause", 0.3)
        case "asks":
            more["answer"] = await ctx.event("answer")
        # The whole worker: as a handler that forgot to give way does.
        case "blocks":
            time.sleep(1.5)  # noqa: ASYNC251
        # Silent for longer than stale_after.
        case "silent at first" if first:
            await asyncio.sleep(5)
    return {"n": job["n"], "token": ctx.token, **more}


worker.run()
