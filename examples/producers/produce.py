#!/usr/bin/env python3
"""Publishes one job, with nothing but the client of NATS: produce.py QUEUE KIND JSON KEY

    pip install nats-py
    NATS_URL=nats://127.0.0.1:4222 python3 produce.py texts word_count '"one two"' text-7

Prints the sequence that the stream gave it. Run again with the same key, it is the same job.
"""

import asyncio
import os
import sys

import nats
from nats.errors import Error

TRIES = 5


# ANCHOR: publish
async def publish(js, subject: str, payload: str, key: str):
    """Until the stream has said that it has it. The key makes it safe to say it again."""
    for attempt in range(1, TRIES + 1):
        try:
            # The stream compares its own id across all queues: the subject makes it one of this queue.
            headers = {"Tenure-Idempotency-Key": key, "Nats-Msg-Id": f"{subject}:{key}"}
            return await js.publish(subject, payload.encode(), timeout=5, headers=headers)
        # No answer: it may have been accepted, or not. A refusal (a full stream, no leader): it was not.
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
        sys.exit("not known whether it was accepted; run this again with the same key")
