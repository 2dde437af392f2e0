"""A worker: takes jobs, runs their handlers, reports and settles."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import logging
import os
import re
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from nats.aio.msg import Msg

from ._batch import Batches
from ._errors import Cancel, Lost, Permanent, ProtocolError, Retry, Snooze, TenureError, suspension
from ._log import RUNNING, Tail
from ._run import Context, Fields, Kind, Run, SyncContext, called, fields_of, is_async, text_of
from ._wire import ANSWERED_WITHIN, Pauses, Wire, check_queue, millis, repeat, size, to_json

log = logging.getLogger("tenure")
Handler = TypeVar("Handler", bound=Callable[..., Any])
Answer = TypeVar("Answer")
WAIT = 5.0
UNCERTAIN_FOR = 30.0
ENTRIES_MAX = 1000
REPORTS_MAX = 100
"""A request with few reports is answered soon, and others are written beside it."""
OVERHEAD = 4096
ERROR_MAX = 20_000
REFUSED = "a gateway refused the end of the attempt"
VERSION = "0.2.0"


@dataclass(eq=False)
class Entry:
    """An entry of a report or a settle."""

    run: Run
    fields: Fields
    text: str
    bytes: int


def entry_of(run: Run, fields: Fields) -> Entry:
    text = run.about(fields)
    return Entry(run, fields, text, size(text))


class Worker:
    """Runs the jobs of one queue, `slots` of them at once."""

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        slots: int = 8,
        prefix: str = "jobs",
        inbox_prefix: str | None = None,
        grace: float = 20.0,
        tls: ssl.SSLContext | None = None,
        nats_options: dict[str, Any] | None = None,
    ) -> None:
        self._connect = (url, prefix, inbox_prefix, tls, nats_options or {})
        self.queue, self.slots, self.grace = check_queue(queue), slots, grace
        self.worker = ""
        """The id, new for each `serve`: a process that is forked must not share it."""
        self._kinds: dict[str, Kind] = {}
        self._runs: dict[str, Run] = {}
        self._latest: dict[str, Run] = {}
        self._settles: list[Entry] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._uncertain_until, self._ok_at, self._woke_at = 0.0, monotonic(), 0.0
        self._draining = False

    def handle(
        self,
        kind: str,
        *,
        stale_after: float | None = None,
        on_crash: str = "retry",
        history: bool = True,
        timeout: float | None = None,
        keepalive: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Decorates the handler of a kind; `*` is every other kind. A plain function runs in a thread.

        `timeout`: seconds after which an attempt is ended. `keepalive`: the worker reports for a handler that is silent
        by its nature; set `timeout`, too, or one that hangs looks alive for ever."""
        rules = {"stale_after_ms": millis(stale_after), "on_crash": on_crash, "history": history}

        def add(handler: Handler) -> Handler:
            self._kinds[kind] = Kind(handler, is_async(handler), rules, timeout, keepalive)
            return handler

        return add

    def handle_batch(
        self,
        kind: str,
        *,
        up_to: int,
        within: float = 0.05,
        stale_after: float | None = None,
        on_crash: str = "halve",
        history: bool = True,
        timeout: float | None = None,
        keepalive: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Decorates a handler that takes up to `up_to` jobs of a kind in one call: a list of `Item`. It returns a list
        with the output of each, in order; an exception in the place of an output ends that job as raising it ends a
        job alone. A batch begins when it is full, or `within` seconds after its first job.

        If the call raises, it is repeated with each half, down to one job, unless it raises `Retry` or `Snooze`, which
        is then for each. If the call kills the process, the jobs come back in halves, then alone, and only one that was
        alone is charged. With `on_crash="dead_letter"` all of them are dead letters. A plain function runs in a
        thread. The other settings are those of `handle`, and are each job's own."""
        if up_to < 1 or up_to > self.slots:
            raise ValueError(
                f"a batch takes a slot for each of its jobs: up_to is {up_to}, but the worker has {self.slots} slots"
            )
        if not 0 <= within <= 60:
            raise ValueError(f"the first job of a batch waits 0 to 60 seconds for others, not {within}")
        if on_crash == "retry":
            raise ValueError('on_crash must be "halve" or "dead_letter" for a batch')

        def add(handler: Handler) -> Handler:
            batches = Batches(self, handler, up_to, within, halves=on_crash == "halve")
            self.handle(
                kind,
                stale_after=stale_after,
                on_crash=on_crash,
                history=history,
                timeout=timeout,
                keepalive=keepalive,
            )(batches.join)
            return handler

        return add

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then stops in order. Ends the process if a handler does not stop."""

        async def until_signalled() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            try:
                await self.serve()
            except BaseException:
                if not self._running():
                    raise
                # Others run these jobs as soon as this worker is gone. So its handlers must not go on.
                log.exception("the process ends with its handlers")
                logging.shutdown()
                sys.stdout.flush()
                os._exit(1)

        asyncio.run(until_signalled())

    def stop(self) -> None:
        """Takes no more jobs. `serve` returns when those that run have ended, or were given back after the grace."""
        self._draining = True
        if hasattr(self, "_freed"):
            self._freed.set()
            self._stopping.set()

    async def serve(self) -> None:
        """Serves until `stop` is called, or an operator drains the worker. Raises if a handler runs on though it was
        asked to stop: end the process then, because others will run its job."""
        if not self._kinds:
            raise TenureError("the worker has no handler: decorate one with @worker.handle(kind)")
        host = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())[:60]
        self.worker = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._loop = asyncio.get_running_loop()
        self._freed, self._look, self._to_settle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stopping = asyncio.Event()
        if self._draining:
            return
        wire = await self._unless_stopped(Wire.connect(*self._connect))
        if wire is None:
            return
        self._wire = wire
        self._entry_max = wire.nc.max_payload - OVERHEAD
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="tenure-handler")
        try:
            await wire.subscribe(f"{wire.prefix}.w.{self.queue}.to.{self.worker}", self._told)
            await self._unless_stopped(repeat(self._hello))
            if not self._draining:
                for step in (self._report_some, self._beat_later, self._settle_some):
                    self._spawn(self._for_ever(step))
                await self._takes()
                await self._end()
        finally:
            self._end_loops()
            for run in self._running():
                self._stop(run, "cut off")
            self._pool.shutdown(wait=False)
            await wire.close()
        if self._settles:
            log.error("%d ends of attempts were not written: these jobs will run elsewhere", len(self._settles))
        if left := len(self._running()):
            raise TenureError(f"{left} handlers run on though they were asked to stop")

    def _running(self) -> list[Run]:
        return [run for run in self._runs.values() if run.is_running]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _for_ever(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeats a step. No answer, however odd, ends that."""
        pauses = Pauses()
        while True:
            try:
                await step()
                pauses = Pauses()
            except Exception as error:
                odd = None if isinstance(error, TenureError) else error
                log.warning("a request failed; the worker goes on: %s", error, exc_info=odd)
                await pauses.next()

    async def _hello(self) -> None:
        about = {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "language": "python",
            "version": VERSION,
        }
        body = {"v": 1, "worker": self.worker, "slots": self.slots, "kinds": self._rules(), **about}
        answer = await self._wire.once(f"w.{self.queue}.hello", json.dumps(body))
        self._beat_every, self._report_every = (
            answer["beat_every_ms"] / 1000,
            answer["report_every_ms"] / 1000,
        )
        self._take_max = answer["take_slots_max"]
        self._keeps_logs = answer.get("keeps_logs", False)
        self._checkpoint_max = min(answer.get("checkpoint_bytes_max", 1 << 20), self._entry_max - OVERHEAD)
        log.info("the worker is ready", extra={"event": "ready", "worker": self.worker})

    def _rules(self) -> dict[str, Any]:
        return {name: kind.rules for name, kind in self._kinds.items()}

    async def _once(self, request: str, entries: str, within: float = ANSWERED_WITHIN) -> dict[str, Any]:
        """Sends a request once. `entries` are its fields, as JSON text without the braces."""
        body = f'{{"v":1,"worker":"{self.worker}"{"," if entries else ""}{entries}}}'
        while True:
            try:
                answer = await self._wire.once(f"w.{self.queue}.{request}", body, within)
                self._ok_at = monotonic()
                return answer
            except ProtocolError as error:
                if error.code != "hello_first":
                    raise
                await self._hello()

    async def _ask(self, request: str, entries: str) -> dict[str, Any]:
        return await repeat(lambda: self._once(request, entries))

    async def _takes(self) -> None:
        pauses = Pauses()
        kinds = json.dumps(self._rules())
        while not self._draining:
            free = min(self.slots - len(self._runs), self._take_max)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            try:
                if monotonic() < self._uncertain_until:
                    await self._unless_stopped(self._reconcile())
                    if self._draining:
                        return
                wait = f'"slots":{free},"wait_ms":{millis(WAIT)},"kinds":{kinds}'
                taken = await self._once("take", wait, WAIT + ANSWERED_WITHIN)
                if taken["uncertain"]:
                    self._uncertain_until = monotonic() + UNCERTAIN_FOR
                for job in taken["jobs"]:
                    self._start(job)
                pauses = Pauses()
            except Exception as error:
                # What was handed out and does not run is given back by the next beats: the worker does not name it.
                log.warning("no jobs were taken; the worker tries again: %s", error, extra={"event": "untaken"})
                self._uncertain_until = monotonic() + UNCERTAIN_FOR
                await pauses.next()

    async def _reconcile(self) -> None:
        """Has jobs given back that are claimed for this worker, and of which it does not know."""
        before = await self._beat()
        await self._beat(as_of=before["now"])

    async def _unless_stopped(self, work: Coroutine[Any, Any, Answer]) -> Answer | None:
        """Waits for requests that are repeated until a gateway answers, or until the worker is to stop."""
        task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stopping.cancel()

    def _start(self, job: dict[str, Any]) -> None:
        kind = self._kinds.get(job["kind"]) or self._kinds["*"]
        run = Run(
            job,
            kind,
            job["stale_after_ms"] / 1000,
            self._checkpoint_max,
            self._entry_max,
            self._once,
            Tail(self._keeps_logs),
        )
        # An attempt of the same job that this worker lost, and of which it has not heard yet.
        if older := self._latest.get(job["job"]):
            self._stop(older, "lost")
            # Its settle may still be repeated: a beat must not name it beside this one.
            older.why = "lost"
        self._latest[job["job"]] = run
        self._runs[job["claim"]] = run
        if self._draining:
            return self._settle(run, fields_of({"outcome": "release", "began": False}))
        run.task = self._loop.create_task(self._attempt(run))
        run.task.add_done_callback(lambda task: self._attempted(run, task))
        return None

    async def _attempt(self, run: Run) -> None:
        began_at = monotonic()
        timer = None
        try:
            run.may_cancel = True
            run.check()
            if "parts" in run.job:
                await self._fetch(run)
            run.began = True
            run.log(logging.DEBUG, "the attempt begins", "began")
            if (limit := run.kind.timeout) is not None:
                timer = self._loop.call_later(limit, self._stop, run, "timeout")
            payload = run.job["payload"]
            RUNNING.set(run.tail)
            if run.kind.is_async:
                output = await run.kind.handler(payload, Context(run, self.queue))
            else:
                run.may_cancel = False
                context = SyncContext(run, self.queue, self._loop)
                in_context = copy_context().run
                call = self._loop.run_in_executor(self._pool, in_context, called, run.kind.handler, payload, context)
                output, raised = await call
                if raised is not None:
                    raise raised
                if inspect.isawaitable(output):
                    run.may_cancel = True
                    output = await output
            end = fields_of({"outcome": "complete", "output": output})
        except GeneratorExit:
            raise
        except BaseException as error:
            end = self._end_of(run, error)
        finally:
            run.may_cancel = False
            if timer:
                timer.cancel()
        # Its report must not come after its end.
        while run.sending is not None:
            await run.change()
        if run.why == "lost":
            return self._forget(run, "lost")
        return self._settle(run, {**end, "ran_ms": str(millis(monotonic() - began_at))})

    def _attempted(self, run: Run, task: asyncio.Task[None]) -> None:
        """An attempt must not end without a word: its job would be this worker's for ever."""
        if run.is_running:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._settle(run, self._end_of(run, error or TenureError("the attempt ended without a result")))

    def _end_of(self, run: Run, error: BaseException) -> Fields:
        """How an attempt ends whose handler raised."""
        try:
            return fields_of(self._said(run, error))
        except Exception as odd:
            log.warning("the handler raised an error that has no text: %r", odd)
            return fields_of({"outcome": "retry", "error": type(error).__name__})

    def _said(self, run: Run, error: BaseException) -> dict[str, Any]:
        if isinstance(error, Lost):
            run.why = "lost"
        if run.why == "cancelled":
            return {"outcome": "cancel", "error": "the job was cancelled"}
        # It has come to a wait: there is nothing to give back, or to try again.
        if suspended := suspension(error):
            return {"outcome": "suspend", "awaits": suspended.awaits, "left_ms": suspended.left_ms}
        if run.why in ("shutdown", "cut off"):
            return {"outcome": "release", "began": run.began}
        if run.why == "timeout" and not run.began:
            # It waited for its batch, and waits again.
            return {"outcome": "release", "began": False}
        if run.why == "timeout":
            limit = run.kind.timeout
            return {"outcome": "retry", "error": f"it ran longer than the {limit} s that its kind allows"}
        text = f"{type(error).__name__}: {error}" if not isinstance(error, TenureError) else str(error)
        text = text[:ERROR_MAX].encode(errors="replace").decode()
        if isinstance(error, Retry):
            return {"outcome": "retry", "error": text, "after_ms": millis(error.after)}
        if isinstance(error, Snooze):
            return {"outcome": "snooze", "after_ms": millis(error.seconds)}
        if isinstance(error, Permanent):
            return {"outcome": "fail", "error": text}
        if isinstance(error, Cancel):
            return {"outcome": "cancel", "error": text}
        log.debug("the handler raised", exc_info=error)
        return {"outcome": "retry", "error": text}

    async def _fetch(self, run: Run) -> None:
        """Gets the parts of a large or unusual job. What cannot be read fails the attempt."""
        text = ""
        for part in range(run.job["parts"]):
            answer = await self._ask("payload", f'"receipt":{run.names["receipt"]},"part":{part}')
            if answer.get("lost"):
                raise Lost
            text += answer["text"]
        run.job.update(json.loads(text))

    def _stop(self, run: Run, why: str) -> None:
        """Asks a handler to stop. The first reason stays, but for the loss of the job."""
        if not run.is_running or run.why == "lost" or (run.why and why != "lost"):
            return
        first, run.why = run.why is None, why
        run.changed.set()
        run.log(logging.WARNING, f"the handler is asked to stop: {why}", "stopped", why=why)
        if first and run.task and run.may_cancel:
            run.task.cancel()

    def _forget(self, run: Run, event: str, **more: Any) -> None:
        run.is_running = False
        self._runs.pop(run.job["claim"], None)
        if self._latest.get(run.job["job"]) is run:
            del self._latest[run.job["job"]]
        self._freed.set()
        level = logging.INFO if event == "settled" else logging.WARNING
        run.log(level, f"the attempt is {event}", event, **more)

    def _settle(self, run: Run, end: Fields) -> None:
        run.is_running = False
        reported = end if run.pending is None else {**end, "report": text_of(run.pending)}
        # A job that completes without the steps that were recorded is told of.
        tells = run.steps or (run.job["token"] > 1 and end["outcome"] == '"complete"')
        called = {**reported, "steps": to_json(sorted(run.steps))} if tells else reported
        tail = run.tail.whole()
        logged = called if tail is None else {**called, "report": text_of({**(run.pending or {}), "log": tail})}
        # The work is worth more than its last report, that more than the names of its steps, these more than the log.
        for fields in (logged, called, reported, end):
            entry = entry_of(run, fields)
            if entry.bytes <= self._entry_max:
                break
        else:
            error = f"the output has {entry.bytes} bytes, but a message of NATS holds at most {self._entry_max}"
            entry = entry_of(run, fields_of({"outcome": "fail", "error": error}))
        self._settles.append(entry)
        self._to_settle.set()

    async def _settle_some(self) -> None:
        """Sends the settles that wait, together."""
        if not self._settles:
            self._to_settle.clear()
            await self._to_settle.wait()
        sent = self._fitting(self._settles, ENTRIES_MAX)
        results = await self._send("settle", sent)
        for entry, result in zip(sent, results, strict=True):
            self._settles.remove(entry)
            self._settled(entry, result)
        if None in results:
            await asyncio.sleep(0.2)

    def _settled(self, entry: Entry, result: str | dict[str, Any] | None) -> None:
        """`result`: None, if the settle is to be repeated. A settle that a gateway refuses must not leave its job with
        this worker until it counts as lost."""
        run, fields = entry.run, entry.fields
        if isinstance(result, str):
            return self._forget(run, result)
        if result is None:
            return self._settles.append(entry)
        message = result["message"]
        run.log(logging.ERROR, f"a settle was refused: {message}", "refused")
        if "report" in fields:
            fields = {name: text for name, text in fields.items() if name != "report"}
            # The report may be what is wrong; the log may say why.
            if not run.is_unreported and (tail := run.tail.whole()) is not None:
                fields["report"] = text_of({"log": tail})
            run.is_unreported = True
        elif not fields.get("error", "").startswith(f'"{REFUSED}'):
            error = f"{REFUSED}: {message}"[:ERROR_MAX]
            fields = fields_of({"outcome": "fail", "error": error})
        else:
            return self._forget(run, "refused", error=message)
        return self._settles.append(entry_of(run, fields))

    def _fitting(self, entries: list[Entry], most: int) -> list[Entry]:
        """Those entries, from the first on, that fit into one request."""
        room = self._entry_max
        fitting: list[Entry] = []
        for entry in itertools.islice(entries, most):
            room -= entry.bytes + 1
            if fitting and room < 0:
                break
            fitting.append(entry)
        return fitting

    async def _send(self, request: str, entries: list[Entry]) -> list[str | dict[str, Any] | None]:
        """Sends entries in one request. The result of one that is to be repeated is None."""
        texts = ",".join(entry.text for entry in entries)
        results = (await self._once(request, f'"{request}s":[{texts}]'))["results"]
        if len(results) != len(entries):
            raise TenureError(f"a gateway answered {len(entries)} entries with {len(results)} results")
        return [_result(result) for result in results]

    async def _report_some(self) -> None:
        """Looks after the attempts, and sends the reports that are due, those of all jobs together."""
        slept_at, pause = monotonic(), min(max(self._report_every * 0.4, 0.01), 0.4)
        await asyncio.sleep(pause)
        now = monotonic()
        if now - slept_at > pause + 1:
            self._woke_at = now
        due = []
        for run in self._running():
            # A process that was frozen does not know yet how its last writes ended.
            is_awake = now - self._woke_at > min(5.0, run.stale_after / 2)
            if is_awake and now - max(run.written_at, self._ok_at) > 0.8 * run.stale_after:
                self._stop(run, "cut off")
            if run.why:
                continue
            if run.kind.keepalive and now - run.sent_at > run.stale_after / 6:
                run.report({})
            is_due = now - run.sent_at >= self._report_every
            if run.sending is None and is_due:
                tail = run.tail.take()
                if run.pending is not None or tail is not None:
                    due.append(self._reported(run, tail))
        while due:
            sent = self._fitting(due, REPORTS_MAX)
            due = due[len(sent) :]
            self._spawn(self._report(sent))

    def _reported(self, run: Run, tail: str | None) -> Entry:
        """The report that waits, with the log if it fits."""
        report = run.send()
        if tail is not None:
            entry = entry_of(run, {**report, "log": tail})
            if entry.bytes <= self._entry_max:
                return entry
            run.tail.put_back()
        return entry_of(run, report)

    async def _report(self, entries: list[Entry]) -> None:
        sent_at = monotonic()
        results: list[str | dict[str, Any] | None] = [None] * len(entries)
        try:
            results = await self._send("report", entries)
        except Exception as error:
            log.warning("reports were not written; the worker tries again: %s", error)
        for entry, result in zip(entries, results, strict=True):
            run = entry.run
            if result in ("ok", "cancel"):
                run.written_at = sent_at
            if result in ("cancel", "lost"):
                self._stop(run, "cancelled" if result == "cancel" else "lost")
            if isinstance(result, dict):
                run.refused = result["message"]
                run.log(logging.ERROR, f"a report was refused: {run.refused}", "refused")
                run.tail.put_back()
            run.sent(result is not None)

    async def _beat(self, as_of: str | None = None) -> dict[str, Any]:
        # A job that is lost may be this worker's again, by another claim.
        named = [run for run in self._runs.values() if run.why != "lost"]
        names = [[run.job["job"], run.job["token"], run.job["claim"]] for run in named]
        body = to_json({"draining": self._draining, "running": names, "as_of": as_of})
        answer = await self._ask("beat", body[1:-1])
        self._keeps_logs = answer.get("keeps_logs", self._keeps_logs)
        # Not a later attempt of the same job, which may have begun here meanwhile.
        by_job = {run.job["job"]: run for run in named if run.is_running}
        for name, why in (("lost", "lost"), ("cancel", "cancelled")):
            for job in answer[name]:
                if job in by_job:
                    self._stop(by_job[job], why)
        return answer

    async def _beat_later(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._look.wait(), self._beat_every)
        self._look.clear()
        await self._beat()

    async def _told(self, message: Msg) -> None:
        """A message to this worker alone."""
        answer = b"here"
        if message.data == b"drain":
            told = {"was_draining": self._draining, "running": len(self._runs)}
            answer = json.dumps(told).encode()
            self.stop()
        elif message.data.startswith(b"{"):
            self._look.set()
        if message.reply:
            await message.respond(answer)

    async def _end(self) -> None:
        """Lets handlers run for the grace, gives the others back, and says goodbye."""
        await self._until_idle(self.grace)
        for run in self._running():
            self._stop(run, "shutdown")
        await self._until_idle(15.0)
        self._end_loops()
        try:
            await self._once("goodbye", "")
        except TenureError:
            log.warning("no gateway heard the goodbye; others find this worker gone")

    def _end_loops(self) -> None:
        """The goodbye is the last request."""
        for task in self._tasks:
            task.cancel()

    async def _until_idle(self, within: float) -> None:
        until = monotonic() + within
        while self._runs and monotonic() < until:
            self._freed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), 0.1)


def _result(result: Any) -> str | dict[str, Any] | None:
    """A word; why the entry was refused; or None, if it is to be sent again."""
    if isinstance(result, str):
        return result
    refusal: dict[str, Any] = result["error"]
    return None if refusal["retry"] else refusal
