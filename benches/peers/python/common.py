"""What both scripts read from the environment, and how they speak: a line of JSON each way, as src/speak.rs says."""

import asyncio
import json
import os
import sys
import threading
import time

QUEUE = os.environ["PEERS_QUEUE"]
# Of Redis, or of NATS.
URL = os.environ["PEERS_URL"]
IS_PICKUP = os.environ["PEERS_WORK"] == "pickup"
SAMPLES = int(os.environ["PEERS_SAMPLES"])

# A library may print: that must not be taken for a word of this process.
_out = os.dup(1)
os.dup2(2, 1)
_speaking = threading.Lock()


def now():
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def say(what):
    line = what if isinstance(what, str) else json.dumps(what)
    with _speaking:
        rest = f"{line}\n".encode()
        while rest:
            rest = rest[os.write(_out, rest) :]


def hear():
    """The next line, or nothing at the end."""
    return sys.stdin.readline().strip()


def example(order):
    """The order of src/order.rs."""
    return {
        "order": order,
        "customer": "customer-00042",
        "lines": [
            {"sku": "socket-12", "quantity": 3, "cents": 1250},
            {"sku": "wrench-09", "quantity": 1, "cents": 4999},
        ],
        "note": "deliver to the back door, please ring",
    }


class Seen:
    """What the handlers have seen."""

    def __init__(self):
        self.count = self.total = self.first_us = 0
        self.starts_us = [0] * SAMPLES
        # Some libraries run handlers in threads.
        self.lock = threading.Lock()


seen = Seen()


def handle(order):
    """The handler of every library."""
    start = now()
    at = order["order"]
    total = sum(line["quantity"] * line["cents"] for line in order["lines"])
    with seen.lock:
        if not seen.first_us:
            seen.first_us = start
        if at < SAMPLES and not seen.starts_us[at]:
            seen.starts_us[at] = start
        seen.total += total
        seen.count += 1


async def shared(enqueue, payloads):
    """Enqueues by eight tasks, each over a connection of its own."""

    async def some(part):
        for payload in part:
            await enqueue(payload)

    await asyncio.gather(*(some(payloads[at::8]) for at in range(8)))
