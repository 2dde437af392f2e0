"""A worker: takes jobs, runs their handlers, reports and settles."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import re
import secrets
import signal
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from nats.aio.msg import Msg

from ._errors import Cancel, Lost, Permanent, ProtocolError, Retry, Snooze, TenureError
from ._run import Context, Kind, Run, SyncContext
from ._wire import ANSWERED_WITHIN, Pauses, Unanswered, Wire, millis

log = logging.getLogger("tenure")
# One for all: `json.dumps` with separators makes one each time.
compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
Handler = TypeVar("Handler", bound=Callable[..., Any])
WAIT = 5.0
UNCERTAIN_FOR = 30.0
ENTRIES_MAX = 1000
OVERHEAD = 4096
ERROR_MAX = 20_000
VERSION = "0.2.0"


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
        self.queue, self.slots, self.grace = queue, slots, grace
        host = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())[:60]
        self.worker = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._kinds: dict[str, Kind] = {}
        self._runs: dict[str, Run] = {}
        self._latest: dict[str, Run] = {}
        self._settles: deque[tuple[Run, dict[str, Any]]] = deque()
        self._uncertain_until, self._ok_at = 0.0, monotonic()
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
            is_async = inspect.iscoroutinefunction(handler)
            self._kinds[kind] = Kind(handler, is_async, rules, timeout, keepalive)
            return handler

        return add

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then stops in order."""

        async def until_signalled() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            await self.serve()

        asyncio.run(until_signalled())
        if self._runs:
            # Others recover these jobs, because this worker is gone. A thread that goes on would run one beside them.
            log.error("handlers did not stop: the process ends with them")
            logging.shutdown()
            sys.stdout.flush()
            os._exit(1)

    def stop(self) -> None:
        """Takes no more jobs. `serve` returns when those that run have ended, or were given back after the grace."""
        self._draining = True
        if hasattr(self, "_freed"):
            self._freed.set()
            self._stopping.set()

    async def serve(self) -> None:
        """Serves until `stop` is called, or an operator drains the worker."""
        if not self._kinds:
            raise TenureError("the worker has no handler: decorate one with @worker.handle(kind)")
        self._loop = asyncio.get_running_loop()
        self._freed, self._look, self._to_settle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stopping = asyncio.Event()
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="tenure-handler")
        self._wire = await Wire.connect(*self._connect)
        await self._wire.nc.subscribe(f"{self._wire.prefix}.w.{self.queue}.to.{self.worker}", cb=self._told)
        await self._wire.nc.flush()
        await self._unless_stopped(self._hello())
        if self._draining:
            return await self._wire.nc.close()
        self._loops = [asyncio.create_task(work()) for work in (self._reports, self._beats, self._settle_all)]
        try:
            await self._takes()
            await self._end()
        finally:
            self._end_loops()
            self._pool.shutdown(wait=False)
            await self._wire.nc.close()

    async def _hello(self) -> None:
        about = {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "language": "python",
            "version": VERSION,
        }
        body = {"v": 1, "worker": self.worker, "slots": self.slots, "kinds": self._rules(), **about}
        answer = await self._wire.ask(f"w.{self.queue}.hello", json.dumps(body))
        self._beat_every, self._report_every = (
            answer["beat_every_ms"] / 1000,
            answer["report_every_ms"] / 1000,
        )
        self._take_max = answer["take_slots_max"]
        self._checkpoint_max = min(
            answer.get("checkpoint_bytes_max", 1 << 20), self._wire.nc.max_payload - 2 * OVERHEAD
        )
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
        pauses = Pauses()
        while True:
            try:
                return await self._once(request, entries)
            except Unanswered as error:
                log.debug("a request is repeated: %s", error)
                await pauses.next()

    async def _takes(self) -> None:
        pauses = Pauses()
        kinds = json.dumps(self._rules())
        while not self._draining:
            free = min(self.slots - len(self._runs), self._take_max)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            if monotonic() < self._uncertain_until:
                await self._unless_stopped(self._reconcile())
                if self._draining:
                    return
            wait = f'"slots":{free},"wait_ms":{millis(WAIT)},"kinds":{kinds}'
            try:
                taken = await self._once("take", wait, WAIT + ANSWERED_WITHIN)
            except Unanswered as error:
                log.warning("no jobs were taken; the worker tries again: %s", error, extra={"event": "untaken"})
                self._uncertain_until = monotonic() + UNCERTAIN_FOR
                await pauses.next()
                continue
            pauses = Pauses()
            if taken["uncertain"]:
                self._uncertain_until = monotonic() + UNCERTAIN_FOR
            for job in taken["jobs"]:
                self._start(job)

    async def _reconcile(self) -> None:
        """Has jobs given back that are claimed for this worker, and of which it does not know."""
        before = await self._beat()
        await self._beat(as_of=before["now"])

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Waits for requests that are repeated until a gateway answers, or until the worker is to stop."""
        task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            stopping.cancel()

    def _start(self, job: dict[str, Any]) -> None:
        kind = self._kinds.get(job["kind"]) or self._kinds["*"]
        run = Run(job, kind, job["stale_after_ms"] / 1000, self._checkpoint_max)
        # An attempt of the same job that this worker lost, and of which it has not heard yet.
        older = self._latest.get(job["job"])
        if older and older.task:
            self._stop(older, "lost")
        self._latest[job["job"]] = run
        self._runs[job["claim"]] = run
        if self._draining:
            return self._settle(run, {"outcome": "release", "began": False})
        run.task = self._loop.create_task(self._attempt(run))
        return None

    async def _attempt(self, run: Run) -> None:
        began_at = monotonic()
        timer = None
        try:
            if "parts" in run.job and not await self._fetch(run):
                return self._forget(run, "lost")
            run.began = True
            run.log(logging.DEBUG, "the attempt begins", "began")
            if (limit := run.kind.timeout) is not None:
                timer = self._loop.call_later(limit, self._stop, run, "timeout")
            payload = run.job["payload"]
            if run.kind.is_async:
                output = await run.kind.handler(payload, Context(run, self.queue))
            else:
                context = SyncContext(run, self.queue, self._loop)
                output = await self._loop.run_in_executor(self._pool, run.kind.handler, payload, context)
            end = {"outcome": "complete", "output": output}
            if output is not None:
                compact(output)
        except (Exception, asyncio.CancelledError) as error:
            end = self._end_of(run, error)
        finally:
            if timer:
                timer.cancel()
        if run.why == "lost":
            return self._forget(run, "lost")
        return self._settle(run, {**end, "ran_ms": millis(monotonic() - began_at)})

    def _end_of(self, run: Run, error: BaseException) -> dict[str, Any]:
        """How an attempt ends whose handler raised."""
        if isinstance(error, Lost):
            run.why = "lost"
        if run.why == "cancelled":
            return {"outcome": "cancel", "error": "the job was cancelled"}
        if run.why in ("shutdown", "cut off") or (isinstance(error, asyncio.CancelledError) and not run.why):
            return {"outcome": "release", "began": run.began}
        text = f"{type(error).__name__}: {error}" if not isinstance(error, TenureError) else str(error)
        text = text[:ERROR_MAX].encode(errors="replace").decode()
        if run.why == "timeout":
            return {
                "outcome": "retry",
                "error": f"it ran longer than the {run.kind.timeout} s that its kind allows",
            }
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

    async def _fetch(self, run: Run) -> bool:
        """Gets the parts of a large job."""
        text = ""
        for part in range(run.job["parts"]):
            answer = await self._ask("payload", f'"receipt":"{run.job["receipt"]}","part":{part}')
            if answer.get("lost"):
                return False
            text += answer["text"]
        run.job.update(json.loads(text))
        return True

    def _stop(self, run: Run, why: str) -> None:
        """Asks a handler to stop. The first reason stays, but for the loss of the job."""
        if run.why == "lost" or (run.why and why != "lost"):
            return
        first, run.why = run.why is None, why
        run.changed.set()
        run.log(logging.WARNING, f"the handler is asked to stop: {why}", "stopped", why=why)
        if first and run.task and run.kind.is_async:
            run.task.cancel()

    def _forget(self, run: Run, event: str, **more: Any) -> None:
        self._runs.pop(run.job["claim"], None)
        if self._latest.get(run.job["job"]) is run:
            del self._latest[run.job["job"]]
        self._freed.set()
        level = logging.INFO if event == "settled" else logging.WARNING
        run.log(level, f"the attempt is {event}", event, **more)

    def _settle(self, run: Run, end: dict[str, Any]) -> None:
        run.task = None
        self._settles.append((run, end))
        self._to_settle.set()

    def _settle_text(self, run: Run, end: dict[str, Any]) -> str:
        """The entry of a settle, with the last report."""
        if (report := run.take_report()) is not None:
            end["report"] = report
        text = compact(run.about(end))
        most = self._wire.nc.max_payload - OVERHEAD
        if len(text) > most and end.pop("report", None):
            text = compact(run.about(end))
        if len(text) > most:
            error = f"the output has {len(text)} bytes, but a message holds at most {most}"
            text = json.dumps(run.about({"outcome": "fail", "error": error}))
        return text

    async def _settle_all(self) -> None:
        """Sends the settles that wait, together."""
        while True:
            await self._to_settle.wait()
            if not self._settles:
                self._to_settle.clear()
                continue
            batch: list[tuple[Run, dict[str, Any]]] = []
            texts: list[str] = []
            waiting: list[tuple[Run, dict[str, Any]]] = []
            room = self._wire.nc.max_payload - OVERHEAD
            while self._settles and len(batch) < ENTRIES_MAX and room > 0:
                run, end = self._settles.popleft()
                if run.is_sending:
                    # Its report must not come after its end.
                    waiting.append((run, end))
                    continue
                text = self._settle_text(run, end)
                if texts and len(text) > room:
                    self._settles.appendleft((run, end))
                    break
                batch.append((run, end))
                texts.append(text)
                room -= len(text) + 1
            self._settles.extend(waiting)
            if not batch:
                await asyncio.sleep(0.01)
                continue
            try:
                answer = await self._ask("settle", f'"settles":[{",".join(texts)}]')
            except TenureError as error:
                log.error("settles were refused; the worker tries again: %s", error)
                self._settles.extend(batch)
                await asyncio.sleep(1.0)
                continue
            again = False
            for (run, end), result in zip(batch, answer["results"], strict=True):
                if isinstance(result, str):
                    self._forget(run, result)
                elif result["error"]["retry"]:
                    again = True
                    self._settles.append((run, end))
                else:
                    self._refused(run, end, result["error"]["message"])
            if again:
                await asyncio.sleep(0.2)

    def _refused(self, run: Run, end: dict[str, Any], message: str) -> None:
        """A settle that a gateway refuses must not leave its job with this worker until it counts as lost."""
        if end.pop("report", None) is None and run.was_refused:
            return self._forget(run, "refused", error=message)
        run.log(logging.ERROR, f"a settle was refused: {message}", "refused")
        if end["outcome"] == "complete" and run.was_refused:
            end = {"outcome": "fail", "error": f"its end was refused: {message}"[:ERROR_MAX]}
        run.was_refused = True
        self._settles.append((run, end))
        return None

    async def _reports(self) -> None:
        """Sends the reports of all jobs together."""
        woke_at = 0.0
        while True:
            slept_at, pause = monotonic(), min(max(self._report_every * 0.4, 0.01), 0.4)
            await asyncio.sleep(pause)
            now = monotonic()
            if now - slept_at > pause + 1:
                woke_at = now
            due = []
            for run in [run for run in self._runs.values() if run.task and not run.why]:
                # A process that was frozen does not know yet how its last writes ended.
                is_awake = now - woke_at > min(5.0, run.stale_after / 2)
                if is_awake and now - max(run.written_at, self._ok_at) > 0.8 * run.stale_after:
                    self._stop(run, "cut off")
                elif run.kind.keepalive and now - run.sent_at > run.stale_after / 6:
                    run.report({})
                if run.pending is not None and now - run.sent_at >= self._report_every:
                    due.append(run)
            while due:
                await self._report(due)

    async def _report(self, due: list[Run]) -> None:
        """Sends as many of these reports as fit into a message, and takes them from the list."""
        sent: list[tuple[Run, dict[str, Any]]] = []
        entries: list[str] = []
        sent_at, room = monotonic(), self._wire.nc.max_payload - OVERHEAD
        while due and len(sent) < ENTRIES_MAX:
            run = due[0]
            if (report := run.take_report()) is not None:
                entry = json.dumps(run.about(report), separators=(",", ":"))
                if len(entry) > self._wire.nc.max_payload - OVERHEAD and "checkpoint" in report:
                    # Earlier texts and a later checkpoint, each of which fits alone.
                    report = {"checkpoint": report["checkpoint"]}
                    entry = json.dumps(run.about(report), separators=(",", ":"))
                if sent and len(entry) > room:
                    run.put_back(report)
                    break
                room -= len(entry) + 1
                sent.append((run, report))
                entries.append(entry)
                run.sent_at, run.is_sending = sent_at, True
            due.pop(0)
        if not sent:
            return
        try:
            results = (await self._once("report", f'"reports":[{",".join(entries)}]'))["results"]
        except TenureError as error:
            log.warning("reports were not written; the worker tries again: %s", error)
            results = [{"error": {"retry": True}}] * len(sent)
        for (run, report), result in zip(sent, results, strict=True):
            run.is_sending = False
            if result in ("ok", "cancel"):
                run.written_at = sent_at
                run.changed.set()
            if result in ("cancel", "lost"):
                self._stop(run, "cancelled" if result == "cancel" else "lost")
            elif isinstance(result, dict) and result["error"]["retry"]:
                run.put_back(report)
            elif isinstance(result, dict):
                run.refused = result["error"]["message"]
                run.log(logging.ERROR, f"a report was refused: {run.refused}", "refused")
                run.changed.set()

    async def _beat(self, as_of: str | None = None) -> dict[str, Any]:
        # A job that is lost may be this worker's again, by another claim.
        named = [run for run in self._runs.values() if run.why != "lost"]
        names = [[run.job["job"], run.job["token"], run.job["claim"]] for run in named]
        body = json.dumps({"draining": self._draining, "running": names, "as_of": as_of})
        answer = await self._ask("beat", body[1:-1])
        # Not a later attempt of the same job, which may have begun here meanwhile.
        by_job = {run.job["job"]: run for run in named if run.task}
        for name, why in (("lost", "lost"), ("cancel", "cancelled")):
            for job in answer[name]:
                if job in by_job:
                    self._stop(by_job[job], why)
        return answer

    async def _beats(self) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._beat_every)
            self._look.clear()
            try:
                await self._beat()
            except TenureError as error:
                log.error("a beat was refused: %s", error)

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
        for run in list(self._runs.values()):
            if run.task:
                self._stop(run, "shutdown")
        await self._until_idle(15.0)
        self._end_loops()
        try:
            await self._once("goodbye", "")
        except TenureError:
            log.warning("no gateway heard the goodbye; others find this worker gone")

    def _end_loops(self) -> None:
        """The goodbye is the last request."""
        for task in self._loops:
            task.cancel()

    async def _until_idle(self, within: float) -> None:
        until = monotonic() + within
        while self._runs and monotonic() < until:
            self._freed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), 0.1)
