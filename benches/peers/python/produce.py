"""The producer: does what it is asked until its standard input ends."""

import asyncio
import importlib
import json
import os
import sys

from common import example, hear, now, say

library = importlib.import_module(f"libraries.{sys.argv[1]}")
BATCH = int(os.environ["PEERS_BATCH"])


async def batches(producer, ask):
    for first in range(0, ask["jobs"], BATCH):
        orders = range(first, min(first + BATCH, ask["jobs"]))
        await producer.enqueue_batch([example(order) for order in orders])


async def paced(producer, ask):
    spans = []
    for order in range(ask["first"], ask["first"] + ask["jobs"]):
        payload = example(order)
        called = now()
        await producer.enqueue(payload)
        spans.append([called, now()])
        await asyncio.sleep(max(0.0, ask["every_ms"] / 1e3 - (now() - called) / 1e6))
    return spans


async def finished(producer, ask):
    since = now()
    while True:
        asked = now()
        if await producer.left() == 0:
            return [[since, asked]]
        await asyncio.sleep(0.002)


ACTS = {"batches": batches, "paced": paced, "finished": finished}


async def main():
    producer = library.Producer()
    await producer.open()
    say("ready")
    while line := hear():
        ask = json.loads(line)
        since = now()
        spans = await ACTS[ask["do"]](producer, ask)
        say(spans or [[since, now()]])


asyncio.run(main())
