"""A second client of the worker protocol, which makes one mistake when it is told to.

It serves the kinds of `docs/conformance.md`, all but `block`, and shares no code with the other clients. Without a
mistake it keeps to the whole of `docs/worker-protocol.md`, so that the kit must pass it. With `TENURE_KIT_MISTAKE` it
breaks one rule, always: a kit that passes it then does not test that rule. `wrong.py --mistakes` lists the mistakes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any

from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

MISTAKES = {
    "deaf": "subscribes to nothing: no probe, drain request or event reaches it",
    "hello_once": "says hello at its start only, not when a gateway asks for it",
    "payload": "loses every character of a payload that is not ASCII",
    "parts": "asks for the first part of a payload in parts only, and takes the payload for null",
    "retry_time": "never says when a retry is to run",
    "snooze_charged": "settles a snooze as a retry",
    "fail_retried": "settles a permanent failure as a retry",
    "crash_swallowed": "settles an ordinary exception of a handler as complete",
    "no_output": "completes a job without its output",
    "chatty": "sends each progress call at once, as a request of its own",
    "no_checkpoint": "does not hand the checkpoint of an earlier attempt to the handler",
    "old_value": "reports the first values of an attempt again, instead of the latest",
    "settle_first": "settles a job while its last report is on its way, and drops the one that was not sent",
    "key_by_attempt": "gives an effect another key in each attempt",
    "step_again": "does a step again in each run, and records it anew",
    "suspend_charged": "settles a job that waits as a retry",
    "same_worker": "has the same worker id at each start",
    "unconfirmed": "does not confirm an answer with jobs",
    "greedy": "asks for twice the slots that it has free, and starts all jobs that it gets",
    "twice": "starts each job's handler twice at once",
    "late_start": "starts the jobs of an answer that it read too late",
    "forgetful": "sends no beat with as_of after a lost answer to take",
    "impatient": "sends a settle once, and believes it settled without an answer",
    "deaf_to_lost": "goes on with a job that a gateway calls lost",
    "deaf_to_cancel": "goes on with a job that is to be cancelled",
    "no_timeout": "lets an attempt go on for longer than its kind may",
    "alive": "reports by a timer for every handler, be it that it hangs",
    "gives_up": "ends when its connection is lost",
    "rude": "ends at once on SIGTERM",
    "no_goodbye": "says no goodbye",
    "never_released": "ends after its grace without settling what still runs",
    "unsettled_stop": "on SIGTERM drops all settles that are not answered yet",
    "unaddressed": "sends each request to any gateway, also to one that is frozen",
    "undrained": "answers a drain request, and goes on",
}
MISTAKE = os.environ.get("TENURE_KIT_MISTAKE", "")
QUIET, STAMP = (bool(os.environ.get(f"TENURE_KIT_{name}")) for name in ("QUIET", "STAMP"))
NAMES = "echo report resume retry error fail snooze cancel sleep slow crash once_key order steps steps_crash follow"
KINDS: dict[str, Any] = {name: {} for name in NAMES.split()}
LIMITS = {} if MISTAKE == "no_timeout" else {"slow": 1.0}
"""How long an attempt of a kind may last, in seconds."""
ENTRIES_MAX, ROOM = 1000, 8192
"""The most entries of a request, and the bytes of a message that are left for what is around them."""


class Unanswered(Exception):
    """No gateway answered in time, or one asks to repeat the request."""


class Refused(Exception):
    """A gateway refuses the request: no repetition would mend it."""


class End(Exception):
    """A handler's own end of its attempt: an outcome, and what goes with it."""

    def __init__(self, outcome: str, **fields: Any) -> None:
        self.end = {"outcome": outcome, **fields}


def encode(value: Any) -> bytes:
    """JSON. Half of a surrogate pair is an error here, as it is in the protocol."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def log(text: object) -> None:
    print(text, file=sys.stderr, flush=True)


def show(event: str, **fields: Any) -> None:
    if not QUIET:
        print(json.dumps({"event": event, **fields}), flush=True)


class Run:
    """An attempt that runs here: what the worker keeps of it, and what its handler sees."""

    def __init__(self, worker: Worker, job: dict[str, Any]) -> None:
        self.worker, self.job = worker, job
        self.id, self.token, self.attempt = job["job"], job["token"], job["attempt"]
        self.stale_after, self.started_at = job["stale_after_ms"] / 1000, monotonic()
        self.tasks: list[asyncio.Task[None]] = []
        self.live = self.began = False
        # Why it was told to stop, and how it ended.
        self.why: str | None = None
        self.end: dict[str, Any] | None = None
        # The values that were not sent yet, and how many reports are on their way.
        self.pending: dict[str, Any] | None = None
        self.sending = 0
        self.first: dict[str, Any] = {}

    @property
    def checkpoint(self) -> Any:
        return None if MISTAKE == "no_checkpoint" else self.job.get("checkpoint")

    def key(self, name: str) -> str:
        return f"{self.id}/{self.attempt}/{name}" if MISTAKE == "key_by_attempt" else f"{self.id}/{name}"

    async def call(self, request: str, **fields: Any) -> dict[str, Any]:
        said = await self.worker.ask(request, receipt=self.job["receipt"], **fields)
        if said.get("lost"):
            self.worker.stop(self, "lost")
            raise asyncio.CancelledError
        return said

    async def step(self, name: str, result: Any) -> Any:
        if self.token > 1 and MISTAKE != "step_again":
            said = await self.call("recorded", name=name)
            if said["recorded"]:
                return said["result"]
        suffix = f" {self.token}" if MISTAKE == "step_again" else ""
        await self.call("step", name=name + suffix, result=result, took_ms=0)
        return result

    async def nap(self, name: str, lasts: int) -> None:
        said = await self.call("sleep", name=name, lasts_ms=lasts)
        if said["left_ms"]:
            raise End("suspend", left_ms=said["left_ms"])

    async def event(self, name: str, within: int | None = None) -> Any:
        said = await self.call("event", name=name, within_ms=within)
        if said["came"] or said.get("late"):
            return said.get("payload", "late")
        raise End("suspend", awaits=name, left_ms=said.get("left_ms"))

    async def all(self, name: str, jobs: list[dict[str, Any]]) -> list[Any]:
        if not (await self.call("all", name=name, jobs=jobs))["ended"]:
            raise End("suspend", awaits=name)
        return [end["output"] for end in await self.ends(name)]

    async def ends(self, name: str | None = None) -> list[dict[str, Any]]:
        ends: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            said = await self.call("outputs", name=name, after=after)
            ends, after = ends + said["ends"], said.get("next")
        return ends

    def progress(self, **values: Any) -> None:
        if len(encode(values)) > self.worker.report_max:
            raise ValueError(f"the report is larger than the {self.worker.report_max} bytes that it may have")
        if MISTAKE == "old_value":
            values = self.first = {**values, **self.first}
        self.pending = {**(self.pending or {}), **values}
        if MISTAKE == "chatty":
            self.worker.spawn(self.worker.report([self]))

    async def flush(self) -> None:
        """Waits until the last report is written."""
        while self.pending is not None or self.sending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def entry(self, fields: dict[str, Any] | None) -> bytes:
        return encode({"job": self.id, "token": self.token, "receipt": self.job["receipt"], **(fields or {})})


class Worker:
    def __init__(self, queue: str, slots: int) -> None:
        self.queue, self.slots = queue, slots
        self.subject = f"tenure.{os.environ.get('TENURE_SUBJECT_PREFIX', 'jobs')}.w.{queue}"
        host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:60]
        self.id = "fixed" if MISTAKE == "same_worker" else f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self.grace = int(os.environ.get("TENURE_SHUTDOWN_GRACE_MS", "10000")) / 1000
        self.runs: dict[str, Run] = {}
        self.ended: list[Run] = []
        self.stopping, self.freed, self.look = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.back, self.to_settle = asyncio.Event(), asyncio.Event()
        self.flying: set[asyncio.Future[Msg]] = set()
        self.spawned: set[asyncio.Task[None]] = set()
        self.ok_at, self.uncertain_until = monotonic(), 0.0
        # What the address of its gateway adds to subjects, since when, and the requests that are on their way to it.
        self.at, self.at_since = "", 0.0
        self.asked: set[asyncio.Future[Msg]] = set()
        self.said_hello = self.signalled = self.over = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task, and keeps it from being collected before it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self.spawned.add(task)
        task.add_done_callback(self.spawned.discard)
        return task

    # The connection, and requests over it.

    async def connect(self) -> None:
        self.nc = Nats()
        inbox = os.environ.get("TENURE_NATS_INBOX_PREFIX", "_INBOX")
        url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
        forever: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "ping_interval": 5}
        told: dict[str, Any] = {"error_cb": self.failed, "disconnected_cb": self.cut, "reconnected_cb": self.mended}
        await self.nc.connect(url, inbox_prefix=inbox, **forever, **told)
        if MISTAKE != "deaf":
            await self.nc.subscribe(f"{self.subject}.to.{self.id}", cb=self.told)
        await self.nc.flush()

    async def stay_connected(self) -> None:
        """The library reconnects by itself, but not once a server has refused it: that need not last, either."""
        while True:
            await asyncio.sleep(0.5)
            if self.nc.is_closed:
                await self.connect()
                await self.mended()

    async def failed(self, error: Exception) -> None:
        # Each try to connect would be a line.
        if not isinstance(error, OSError):
            log(f"NATS: {error!r}")

    async def cut(self) -> None:
        if MISTAKE == "gives_up" and not self.over:
            os._exit(1)
        # What is on its way gets no answer any more.
        for asked in self.flying | self.asked:
            asked.cancel()

    async def mended(self) -> None:
        self.look.set()
        self.hurry()

    def hurry(self) -> None:
        """Ends all pauses."""
        self.back.set()
        self.back.clear()

    async def pause(self, tries: int) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.back.wait(), min(0.1 * 2 ** min(tries, 9), 5.0) * random.uniform(0.5, 1.0))

    def body(self, **fields: Any) -> bytes:
        return encode({"v": 1, "worker": self.id, **fields})

    async def once(self, request: str, body: bytes, within: float = 5.0) -> dict[str, Any]:
        """Sends a request once, and says hello before if a gateway asks for it."""
        if not self.nc.is_connected:
            raise Unanswered(f"{request}: no connection")
        at = await self.address()
        asked_at = monotonic()
        asked = asyncio.ensure_future(self.nc.request(f"{self.subject}.{request}{at}", body, timeout=within))
        flying = self.asked if at else self.flying
        flying.add(asked)
        try:
            await asyncio.wait({asked}, timeout=within)
        finally:
            flying.discard(asked)
            asked.cancel()
        if not asked.done() or asked.cancelled():
            raise Unanswered(f"{request}: no answer")
        try:
            message = asked.result()
            answer = json.loads(message.data)
        except (NatsError, OSError, asyncio.TimeoutError, ValueError) as error:
            self.at = "" if at == self.at else self.at
            raise Unanswered(f"{request}: {error!r}") from error
        if (refused := answer.get("error")) is not None:
            if refused["code"] == "hello_first" and MISTAKE != "hello_once":
                await self.hello()
                return await self.once(request, body, within)
            raise (Unanswered if refused["retry"] else Refused)(f"{request}: {refused['message']}")
        ok: dict[str, Any] = answer["ok"]
        late = monotonic() - asked_at - ok.get("waited_ms", within * 1000) / 1000
        if late > 2.0 and MISTAKE != "late_start":
            raise Unanswered(f"{request}: the answer was read too late")
        if message.reply and MISTAKE != "unconfirmed":
            with suppress(NatsError):
                await self.nc.publish(message.reply, b"")
        self.ok_at = monotonic()
        return ok

    async def address(self) -> str:
        """Finds a gateway that answers, for half a minute. Empty: any gateway."""
        if monotonic() - self.at_since < 30.0 and self.at:
            return self.at
        for within in (0.3, 0.3, 0.6, 1.2) if MISTAKE != "unaddressed" else ():
            with suppress(NatsError, OSError, asyncio.TimeoutError, KeyError):
                said = await self.nc.request(f"{self.subject}.ping", b'{"v":1}', timeout=within)
                self.at, self.at_since = "@" + json.loads(said.data)["ok"]["gateway"], monotonic()
                return self.at
        return ""

    async def pings(self) -> None:
        """Has what is on its way to a gateway that does not answer sent to another one."""
        while True:
            await asyncio.sleep(0.5)
            at, asked, asked_at = self.at, set(self.asked), monotonic()
            if not asked or not self.nc.is_connected:
                continue
            try:
                await self.nc.request(f"{self.subject}.ping{at}", b'{"v":1}', timeout=1.0)
            except (NatsError, OSError, asyncio.TimeoutError):
                if monotonic() - asked_at < 1.5:
                    self.at = "" if at == self.at else self.at
                    for one in asked:
                        one.cancel()

    async def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        """Repeats a request until it is answered."""
        body, tries = self.body(**fields), 0
        while True:
            try:
                return await self.once(request, body)
            except Unanswered as error:
                log(error)
                await self.pause(tries)
                tries += 1

    async def send(self, request: str, entries: list[bytes]) -> list[Any]:
        """Sends reports or settles, each as many as fit into a request. One that spoils all others is refused alone."""
        n = size = 0
        while n < min(len(entries), ENTRIES_MAX) and (n == 0 or size + len(entries[n]) < self.room):
            size, n = size + len(entries[n]) + 1, n + 1
        body = self.body()[:-1] + b',"%ss":[' % request.encode() + b",".join(entries[:n]) + b"]}"
        try:
            results = list((await self.once(request, body))["results"])
        except Unanswered as error:
            log(error)
            results = [{"error": {"retry": True}}] * n
        except Refused as error:
            results = [{"error": {"retry": False, "message": str(error)}}]
            if n > 1:
                results = [(await self.send(request, [entry]))[0] for entry in entries[:n]]
        return results + (await self.send(request, entries[n:]) if entries[n:] else [])

    # Who it is, and which jobs it has.

    async def hello(self) -> None:
        about = {"hostname": socket.gethostname()[:200], "pid": os.getpid(), "language": "python", "version": "0"}
        said = await self.ask("hello", slots=self.slots, kinds=KINDS, **about)
        self.beat_every, self.report_every = said["beat_every_ms"] / 1000, said["report_every_ms"] / 1000
        self.take_max, self.wait = said["take_slots_max"], min(5000, said["wait_ms_max"])
        self.room = self.nc.max_payload - ROOM
        self.report_max = min(said["checkpoint_bytes_max"], self.room - ROOM)
        if not self.said_hello:
            show("ready", worker=self.id)
        self.said_hello = True

    async def beat(self, as_of: str | None = None) -> str:
        named = {run.id: run for run in self.runs.values() if run.why != "lost"}
        running = [[run.id, run.token, run.job["claim"]] for run in named.values()]
        said = await self.ask("beat", draining=self.stopping.is_set(), running=running, as_of=as_of)
        # Not a claim that has come meanwhile.
        for jobs, why in ((said["lost"], "lost"), (said["cancel"], "cancelled")):
            for job in jobs:
                if job in named:
                    self.stop(named[job], why)
        return str(said["now"])

    async def beats(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.look.wait(), self.beat_every)
            self.look.clear()
            try:
                await self.beat()
            except Refused as error:
                log(error)

    async def told(self, message: Msg) -> None:
        answer = b"here"
        if message.data == b"drain" and message.reply:
            answer = encode({"was_draining": self.stopping.is_set(), "running": len(self.runs)})
            if MISTAKE != "undrained":
                self.take_no_more()
        elif message.data and MISTAKE != "deaf_to_cancel":
            with suppress(ValueError, AttributeError):
                if json.loads(message.data).get("event") == "look":
                    self.look.set()
        if message.reply:
            await message.respond(answer)

    # Taking jobs and running them.

    async def takes(self) -> None:
        tries = 0
        while not self.stopping.is_set():
            free = min(self.slots - len(self.runs), self.take_max)
            if free <= 0:
                self.freed.clear()
                await self.freed.wait()
                continue
            if MISTAKE == "greedy":
                free *= 2
            try:
                if monotonic() < self.uncertain_until and MISTAKE != "forgetful":
                    # Jobs that were claimed for this worker, and of which it does not know, are given back.
                    await self.unless_stopping(self.reconcile())
                    if self.stopping.is_set():
                        return
                body = self.body(slots=free, wait_ms=self.wait, kinds=KINDS)
                taken = await self.once("take", body, self.wait / 1000 + 5.0)
            except (Unanswered, Refused) as error:
                log(error)
                self.uncertain_until = monotonic() + 30.0
                await self.pause(tries)
                tries += 1
                continue
            tries = 0
            if taken["uncertain"]:
                self.uncertain_until = monotonic() + 30.0
            for job in taken["jobs"]:
                # An attempt of the same job that this worker lost, and of which it has not heard yet.
                for older in [older for older in self.runs.values() if older.id == job["job"]]:
                    self.stop(older, "lost")
                run = self.runs[job["claim"]] = Run(self, job)
                if self.stopping.is_set():
                    self.settle(run, {"outcome": "release", "began": False})
                    continue
                run.tasks.append(self.spawn(self.attempt(run)))
                if MISTAKE == "twice":
                    run.tasks.append(self.spawn(self.attempt(run)))

    async def reconcile(self) -> None:
        await self.beat(as_of=await self.beat())

    async def unless_stopping(self, work: Coroutine[Any, Any, None]) -> None:
        """Waits for work that may last for as long as there is no gateway."""
        task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            task.result()
        task.cancel()

    async def attempt(self, run: Run) -> None:
        run.live = True
        timer = None
        try:
            if "parts" in run.job:
                await self.fetch(run)
            if run.why:
                raise asyncio.CancelledError
            run.began = True
            show("began", job=run.id, kind=run.job["kind"], attempt=run.attempt, token=run.token)
            if limit := LIMITS.get(run.job["kind"]):
                timer = asyncio.get_running_loop().call_later(limit, self.stop, run, "timeout")
            payload = run.job.get("payload")
            if MISTAKE == "payload":
                payload = json.loads(json.dumps(payload, ensure_ascii=False).encode("ascii", "ignore"))
            output = await handle(run.job["kind"], payload, run)
            if len(encode(output)) > self.room - ROOM:
                raise End("fail", error=f"the output is larger than the {self.room - ROOM} bytes that it may have")
            end = {"outcome": "complete", "output": None if MISTAKE == "no_output" else output}
        except End as own:
            end = own.end
            if end["outcome"] == "retry" and MISTAKE == "retry_time":
                end["after_ms"] = None
            elif (end["outcome"], MISTAKE) in (
                ("snooze", "snooze_charged"),
                ("fail", "fail_retried"),
                ("suspend", "suspend_charged"),
            ):
                end = {"outcome": "retry", "after_ms": end.get("after_ms")}
        except asyncio.CancelledError:
            if run.why is None:
                raise
            end = {"outcome": "release", "began": run.began}
            if run.why == "cancelled":
                end = {"outcome": "cancel", "error": "the job was cancelled"}
            elif run.why == "timeout":
                end = {"outcome": "retry", "error": "it ran longer than its kind may"}
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:20_000].encode(errors="replace").decode()
            end = {"outcome": "complete" if MISTAKE == "crash_swallowed" else "retry", "error": text}
        finally:
            if timer:
                timer.cancel()
        if run.why == "lost":
            return self.forget(run, "lost")
        return self.settle(run, {**end, "ran_ms": round(1000 * (monotonic() - run.started_at))})

    async def fetch(self, run: Run) -> None:
        """Gets the parts of a large job."""
        text = ""
        for part in range(1 if MISTAKE == "parts" else run.job["parts"]):
            said = await self.ask("payload", receipt=run.job["receipt"], part=part)
            if said.get("lost"):
                run.why = "lost"
                raise asyncio.CancelledError
            text += said["text"]
        run.job.update({"payload": None} if MISTAKE == "parts" else json.loads(text))

    def stop(self, run: Run, why: str) -> None:
        """Tells a handler to stop. The first reason stays, but for the loss of the job."""
        if (MISTAKE, why) in (("deaf_to_lost", "lost"), ("deaf_to_cancel", "cancelled")):
            return
        if run.end or run.why == "lost" or (run.why and why != "lost"):
            return
        run.why = why
        show("stopped", job=run.id, token=run.token, why=why)
        # A task that is cancelled before its first step would never get to its end.
        for task in run.tasks if run.live else ():
            task.cancel()

    def forget(self, run: Run, event: str) -> None:
        self.runs.pop(run.job["claim"], None)
        self.freed.set()
        show(event, job=run.id, token=run.token)

    # Reports and settles.

    async def watch(self) -> None:
        """Sends the reports of all jobs together, and stops handlers of which no gateway has heard for too long."""
        due_at = alive_at = woke_at = monotonic()
        while True:
            slept_at = monotonic()
            await asyncio.sleep(min(self.report_every / 10, 0.1))
            now = monotonic()
            if now - slept_at > 1.0:
                # This process was frozen: it does not know yet what became of its jobs.
                woke_at = now
            running = [run for run in self.runs.values() if run.end is None]
            for run in running:
                is_awake = now - woke_at > min(5.0, run.stale_after / 2)
                if is_awake and now - max(self.ok_at, run.started_at) > 0.8 * run.stale_after:
                    self.stop(run, "cut off")
            if MISTAKE == "alive" and now - alive_at > 1.0:
                alive_at = now
                for run in running:
                    run.pending = run.pending or {}
            if now >= due_at:
                due_at = now + self.report_every
                if due := [run for run in self.runs.values() if run.pending is not None and not run.sending]:
                    self.spawn(self.report(due))

    async def report(self, runs: list[Run]) -> None:
        sent = [(run, run.pending or {}) for run in runs]
        for run in runs:
            run.pending, run.sending = None, run.sending + 1
        if MISTAKE == "settle_first":
            await asyncio.sleep(0.3)
        results = await self.send("report", [run.entry(values) for run, values in sent])
        for (run, values), result in zip(sent, results, strict=True):
            run.sending -= 1
            if result in ("cancel", "lost"):
                self.stop(run, "cancelled" if result == "cancel" else "lost")
            elif result != "ok" and result["error"]["retry"]:
                # The next report takes its place, with the values that are newer.
                run.pending = {**values, **(run.pending or {})}
            elif result != "ok":
                log(f"a report of {run.id} was refused: {result['error']['message']}")
        self.to_settle.set()

    def settle(self, run: Run, end: dict[str, Any]) -> None:
        if run.end is None:
            run.end = end
            self.ended.append(run)
            self.to_settle.set()

    async def settles(self) -> None:
        while True:
            await self.to_settle.wait()
            # Others that end at the same time go with it.
            await asyncio.sleep(0.005)
            self.to_settle.clear()
            ended, self.ended, batch = self.ended, [], []
            for run in ended:
                if MISTAKE == "settle_first":
                    run.pending, run.sending = None, 0
                whole = {**(run.end or {}), **({"report": run.pending} if run.pending else {})}
                if run.sending or (run.pending and len(run.entry(whole)) > self.room):
                    # Its report must not come after its end; one that does not fit in goes before it.
                    self.ended.append(run)
                else:
                    run.end, run.pending = whole, None
                    batch.append(run)
            if batch:
                self.spawn(self.settle_all(batch))

    async def settle_all(self, batch: list[Run]) -> None:
        """Repeats these settles until each is answered."""
        tries = 0
        while batch and not (MISTAKE == "unsettled_stop" and self.stopping.is_set()):
            results = await self.send("settle", [run.entry(run.end) for run in batch])
            again = []
            for run, result in zip(batch, results, strict=True):
                if isinstance(result, str):
                    self.forget(run, result)
                elif result["error"]["retry"] and MISTAKE == "impatient":
                    self.forget(run, "settled")
                elif result["error"]["retry"] or self.mend(run, result["error"]["message"]):
                    again.append(run)
            batch = again
            if batch:
                await self.pause(tries)
                tries += 1

    def mend(self, run: Run, message: str) -> bool:
        """Changes a settle that was refused, which would leave its job with this worker. `False`: it cannot be."""
        log(f"a settle of {run.id} was refused: {message}")
        end = run.end or {}
        if end.pop("report", None) is None:
            if end["outcome"] == "fail":
                self.forget(run, "refused")
                return False
            run.end = {"outcome": "fail", "error": f"its end was refused: {message}"[:20_000]}
        return True

    # The whole life.

    def take_no_more(self) -> None:
        self.stopping.set()
        self.freed.set()
        self.hurry()

    def on_signal(self) -> None:
        if MISTAKE == "rude":
            os._exit(0)
        self.signalled = True
        self.take_no_more()

    async def begin(self) -> None:
        await self.connect()
        await self.hello()

    async def serve(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal)
        await self.unless_stopping(self.begin())
        if self.said_hello:
            takes, stopping = self.spawn(self.takes()), asyncio.ensure_future(self.stopping.wait())
            loops = [
                self.spawn(work()) for work in (self.beats, self.watch, self.settles, self.pings, self.stay_connected)
            ]
            first, _ = await asyncio.wait({takes, stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for task in first:
                task.result()
            await takes
            await self.wind_down()
            # The goodbye is the last request.
            for task in loops:
                task.cancel()
        self.over = True
        if MISTAKE != "no_goodbye" and self.nc.is_connected:
            with suppress(asyncio.TimeoutError, Refused):
                await asyncio.wait_for(self.ask("goodbye"), 5.0)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.nc.close(), 2.0)

    async def wind_down(self) -> None:
        """Waits until all jobs are settled, and stops the handlers that outlast the grace."""
        stop_by = float("inf")
        while any(run.end is None for run in self.runs.values()) if MISTAKE == "unsettled_stop" else self.runs:
            if self.signalled:
                stop_by = min(stop_by, monotonic() + self.grace)
            if monotonic() >= stop_by:
                for run in list(self.runs.values()):
                    self.stop(run, "shutdown")
                if MISTAKE == "never_released":
                    return
            await asyncio.sleep(0.02)


async def handle(kind: str, job: Any, run: Run) -> Any:
    """The handlers of the kinds."""
    match kind:
        case "echo":
            return job
        case "report":
            for i in range(1, job["reports"] + 1):
                percent, message = 100 * i / job["reports"], f"{i} of {job['reports']}"
                run.progress(stage="working", progress=percent, message=message, checkpoint={"i": i})
                await asyncio.sleep(job["every_ms"] / 1000)
            return {"from": run.checkpoint}
        case "resume":
            if run.checkpoint is None:
                run.progress(checkpoint={"i": 3})
                await run.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return {"from": run.checkpoint}
        case "retry" if run.attempt == 1:
            raise End("retry", error="not yet", after_ms=job.get("after_ms"))
        case "error" if run.attempt == 1:
            raise ValueError("boom")
        case "fail":
            raise End("fail", error="no attempt could mend it")
        case "snooze" if run.checkpoint is None:
            run.progress(checkpoint={"snoozed": True})
            await run.flush()
            raise End("snooze", after_ms=job["ms"])
        case "cancel":
            raise End("cancel", error="not needed")
        case "sleep":
            until, every = monotonic() + job["ms"] / 1000, job["every_ms"] / 1000
            while (left := until - monotonic()) > 0:
                await asyncio.sleep(min(left, every or left))
                if every:
                    run.progress(stage="sleeping")
            return "slept"
        case "slow" if run.attempt == 1:
            await asyncio.sleep(60)
        case "crash" if run.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "once_key":
            return {"key": run.key("x"), "again": run.key("x")}
        case "steps":
            one = await run.step("one", {"token": run.token})
            await run.nap("nap", job["ms"])
            go = await run.event("go")
            parts = await run.all("parts", [{"kind": "echo", "payload": {"n": n}} for n in job["parts"]])
            late = await run.event("never", within=1)
            return {"one": one, "go": go, "parts": parts, "late": late, "attempt": run.attempt, "token": run.token}
        case "steps_crash":
            one = await run.step("one", {"token": run.token})
            if run.token == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"one": one, "attempt": run.attempt, "token": run.token}
        case "follow":
            ends = await run.ends()
            outputs = [end["output"] for end in ends if end["completed"]]
            return {"outputs": outputs, "failed": [end["job"] for end in ends if not end["completed"]]}
        case "order":
            began = time.time_ns() // 1000
            sum(line["quantity"] * line["cents"] for line in job["lines"])
            return began if STAMP else None
    return {"attempt": run.attempt}


async def main() -> None:
    await Worker(sys.argv[1], int(sys.argv[2])).serve()


if __name__ == "__main__":
    if sys.argv[1:] == ["--mistakes"]:
        print("\n".join(f"{name}\t{what}" for name, what in MISTAKES.items()))
    elif (MISTAKE and MISTAKE not in MISTAKES) or len(sys.argv) != 3:
        log(f"usage: wrong.py QUEUE SLOTS, or wrong.py --mistakes; the mistake is {MISTAKE!r}")
        sys.exit(2)
    else:
        asyncio.run(main())
