"""The worker: works from the word on until its standard input ends."""

import importlib
import os
import sys
import threading
import time

from common import hear, say, seen

library = importlib.import_module(f"libraries.{sys.argv[1]}")


def tell():
    """Says how many jobs have begun."""
    told = 0
    while True:
        if seen.count != told:
            told = seen.count
            say({"count": told})
        time.sleep(0.005)


def end():
    """Says all of it when the standard input ends. At once: what was measured is over."""
    while os.read(0, 1024):
        pass
    with seen.lock:
        say(
            {
                "count": seen.count,
                "is_all": True,
                "total": seen.total,
                "first_us": seen.first_us,
                "starts_us": seen.starts_us,
            }
        )
        os._exit(0)


say("ready")
if hear():
    for of in (tell, end):
        threading.Thread(target=of, daemon=True).start()
    library.work()
sys.exit("the worker has ended")
