"""A process that stays, and does what the kind of its job says."""
import json
import os
import signal
import subprocess
import sys
import time

folder = sys.argv[1]


def tell(**line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def leave(name, text=""):
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(str(text))
    os.rename(f"{folder}/{name}.new", f"{folder}/{name}")


for text in sys.stdin:
    job = json.loads(text)
    kind, payload, claim = job["kind"], job["payload"], job["claim_id"]
    settle = lambda verdict, **more: tell(settle=verdict, claim_id=claim, **more)
    if kind == "echo":
        settle("complete", output={"pid": os.getpid(), "job": job})
    elif kind == "earlier":
        tell(output={"n": 1})
        tell(output={"n": payload})
        settle("complete")
    elif kind == "last":
        settle("complete")
        os._exit(0)
    elif kind == "settle":
        settle(payload.pop("verdict"), **payload)
    elif kind == "exit":
        print("the reason", file=sys.stderr, flush=True)
        os._exit(payload)
    elif kind == "checkpoint":
        if job["checkpoint"] is None:
            tell(stage="first", checkpoint={"page": 7})
            os._exit(1)
        settle("complete", output=job["checkpoint"])
    elif kind == "half":
        sys.stdout.write('{"settle": "complete", "claim_id": "' + claim)
        sys.stdout.flush()
        os._exit(0)
    elif kind == "raw":
        print(payload.replace("CLAIM", claim), flush=True)
    elif kind == "long":
        print("x" * (5 * 1024 * 1024), flush=True)
    elif kind == "twice":
        settle("complete", output=1)
        settle("complete", output=2)
    elif kind == "slow":
        leave("slow-began")
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.01)
        settle("complete", output=3)
    elif kind == "closed":
        os.close(1)
        time.sleep(600)
    elif kind == "forks":
        child = subprocess.Popen(["sleep", "600"])
        settle("complete", output={"child": child.pid, "pid": os.getpid()})
    elif kind == "stopped":
        leave("stopped-pid", os.getpid())
        time.sleep(600)
    elif kind == "saves":
        def save(*_):
            tell(checkpoint={"page": 9})
            os._exit(1)

        if job["checkpoint"] is not None:
            settle("complete", output=job["checkpoint"])
            continue
        signal.signal(signal.SIGTERM, save)
        leave("saves-began")
        time.sleep(600)
    elif kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        settle("complete", output={"pid": os.getpid()})
        while True:
            time.sleep(600)
    elif kind == "bytes":
        sys.stdout.buffer.write(b"caf\xe9\n")
        settle("complete")
    elif kind == "guarded":
        leave("guard", os.getppid())
        leave("guarded", os.getpid())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(600)
    elif kind == "in.time":
        def at_the_end(*_):
            settle("complete", output="in time")
            os._exit(0)

        signal.signal(signal.SIGTERM, at_the_end)
        leave("in-time-began")
        time.sleep(600)
# Its standard input has ended: it ends by itself.
leave(f"ended-{os.getpid()}")
