"""Prints the ends of a queue's jobs, as workers publish them. Needs nats-py.

    tenure queues events QUEUE ends
    python3 ends.py nats://127.0.0.1:4222 QUEUE
"""
import asyncio
import json
import os
import sys

import nats

# TENURE_SUBJECT_PREFIX of the workers.
PREFIX = os.environ.get("SUBJECT_PREFIX", "jobs")


async def main(url: str, queue: str) -> None:
    client = await nats.connect(url)
    ends = await client.subscribe(f"tenure.{PREFIX}.end.{queue}.>")
    await client.flush()
    print("subscribed", flush=True)
    async for message in ends.messages:
        end = json.loads(message.data)
        print(end["job_id"], end["kind"], end["status"], flush=True)


asyncio.run(main(*sys.argv[1:3]))
