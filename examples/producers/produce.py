#!/usr/bin/env python3
"""Publishes one job, with only the NATS client: produce.py QUEUE KIND JSON KEY

    pip install nats-py
    NATS_URL=nats://127.0.0.1:4222 python3 produce.py texts word_count '"one two"' text-7

Prints the sequence that the stream assigned. With the same key, a second run publishes the same job.
"""

import asyncio
import os
import sys

import nats
from nats.errors import Error

TRIES = 5


# ANCHOR: publish
async def publish(js, subject: str, payload: str, key: str):
    """Publishes the message until the stream confirms it; the key makes repetition safe."""
    for attempt in range(1, TRIES + 1):
        try:
            # The stream compares Nats-Msg-Id across all queues; the subject in it limits it to this queue.
            headers = {"Tenure-Idempotency-Key": key, "Nats-Msg-Id": f"{subject}:{key}"}
            return await js.publish(subject, payload.encode(), timeout=5, headers=headers)
        # No answer: the message may or may not be accepted. A refusal (full stream, no leader): it is not.
        except Error as error:
            print(f"try {attempt}: {error!r}", file=sys.stderr)
            if attempt == TRIES:
                raise
            await asyncio.sleep(2 ** (attempt - 1))
# ANCHOR_END: publish


async def main(queue: str, kind: str, payload: str, key: str) -> None:
    prefix = os.environ.get("TENURE_SUBJECT_PREFIX", "jobs")
    connection = await nats.connect(
        os.environ["NATS_URL"].split(","),
        inbox_prefix=os.environ.get("TENURE_NATS_INBOX_PREFIX", "_INBOX").encode(),
    )
    try:
        ack = await publish(connection.jetstream(), f"{prefix}.{queue}.{kind}", payload, key)
    finally:
        await connection.close()
    print(ack.seq, "(accepted before)" if ack.duplicate else "")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except Error:
        sys.exit("it is unknown whether the stream accepted the job; run this again with the same key")
