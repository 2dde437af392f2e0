"""A worker of tenure's client for Python. Its jobs are enqueued by the program `peers`."""

import os

from tenure import Worker

from common import QUEUE, URL, handle


def work():
    worker = Worker(URL, QUEUE, slots=int(os.environ["PEERS_SLOTS"]))

    @worker.handle("order")
    async def order(payload, ctx):
        handle(payload)

    worker.run()
