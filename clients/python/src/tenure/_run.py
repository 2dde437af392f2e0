"""An attempt that runs here, and what its handler sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

from ._errors import Cancelled, Lost, Permanent, ProtocolError, Suspended, TenureError, seconds_of
from ._log import Tail
from ._wire import millis, repeat, size, to_json

log = logging.getLogger("tenure")
Answer = TypeVar("Answer")
READS = ("recorded", "outputs")
"""The requests that write nothing."""
JOBS_MAX = 1000
"""The most jobs of one `all`."""
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
NAME_BYTES_MAX = 512

Fields = dict[str, str]
"""The fields of a JSON object, each as JSON text: a value is written once, when it is said."""


def fields_of(values: dict[str, Any]) -> Fields:
    return {name: to_json(value) for name, value in values.items() if value is not None}


def text_of(fields: Fields) -> str:
    return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"


@dataclass(frozen=True)
class NewJob:
    """A job that another one enqueues, in its own queue."""

    kind: str
    payload: Any
    max_attempts: int | None = None
    lane: str | None = None
    priority: int | None = None


def is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


def called(handler: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Runs a blocking handler. A future takes no `StopIteration`, and would wait for ever."""
    try:
        return handler(*arguments), None
    except BaseException as error:
        return None, error


@dataclass
class Kind:
    handler: Callable[..., Any]
    is_async: bool
    rules: dict[str, Any]
    timeout: float | None
    keepalive: bool


@dataclass(eq=False)
class Run:
    """An attempt that runs here."""

    job: dict[str, Any]
    kind: Kind
    stale_after: float
    checkpoint_max: int
    entry_max: int
    once: Callable[[str, str], Awaitable[dict[str, Any]]]
    tail: Tail
    began: bool = False
    # Its handler may still do something.
    is_running: bool = True
    # Its task waits for what a cancellation may end.
    may_cancel: bool = False
    written_at: float = field(default_factory=monotonic)
    sent_at: float = 0.0
    pending: Fields | None = None
    sending: Fields | None = None
    why: str | None = None
    refused: str | None = None
    # Its settle was refused with its report, and goes without it.
    is_unreported: bool = False
    # The names of the steps that it has called.
    steps: set[str] = field(default_factory=set)
    # The handler is called once more in this attempt, which may have recorded steps.
    is_repeated: bool = False
    task: asyncio.Task[None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.names = {name: to_json(self.job[name]) for name in ("job", "token", "receipt")}

    def repeat(self) -> None:
        """Lets the handler call its steps once more in this attempt, as a batch does that is called again in halves."""
        self.is_repeated = True
        with self.lock:
            self.steps.clear()

    def about(self, fields: Fields) -> str:
        """An entry of a request about this attempt."""
        return text_of({**fields, **self.names})

    def report(self, later: Fields) -> None:
        with self.lock:
            self.pending = {**(self.pending or {}), **later}

    def send(self) -> Fields:
        """Takes the report that waits, and marks it as on its way."""
        with self.lock:
            self.sending, self.pending = self.pending or {}, None
        self.sent_at = monotonic()
        return self.sending

    def sent(self, is_over: bool) -> None:
        """Ends the sending of a report. One that was not written waits again, under what was said since."""
        with self.lock:
            if not is_over:
                self.pending = {**(self.sending or {}), **(self.pending or {})}
                self.tail.put_back()
            self.sending = None
        self.changed.set()

    async def change(self) -> None:
        """Waits for the next change."""
        self.changed.clear()
        await self.changed.wait()

    def check(self) -> None:
        if self.why == "lost":
            raise Lost
        if self.why:
            raise Cancelled(self.why)
        if self.refused is not None:
            raise TenureError(f"a report was refused: {self.refused}")

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Notes the call of a step. One that fails in here may be called again."""
        self.check()
        if not NAME.fullmatch(name) or size(name) > NAME_BYTES_MAX:
            rule = f"1 to {NAME_BYTES_MAX} bytes without control characters"
            raise Permanent(f"the name of a step must have {rule}: {name!r}")
        with self.lock:
            if name in self.steps:
                what = f"step {name!r} was called twice in one attempt"
                raise Permanent(f"{what}: give each step of a job a name of its own")
            self.steps.add(name)
        try:
            yield
        except BaseException:
            self.steps.discard(name)
            raise

    async def ask(self, request: str, fields: Fields) -> dict[str, Any]:
        """Asks about a step until a gateway answers, or the handler is to stop. A write is a sign of life."""
        entries = text_of({**fields, "receipt": self.names["receipt"]})[1:-1]

        async def once() -> dict[str, Any]:
            sent_at = monotonic()
            answer = await self.once(request, entries)
            if not answer.get("lost") and request not in READS:
                self.written_at = max(self.written_at, sent_at)
            return answer

        # What a step has done is done, also if its handler is to stop.
        is_last = request == "step" and self.why not in (None, "lost")
        asking = asyncio.ensure_future(once() if is_last else repeat(once))
        asking.add_done_callback(lambda _: self.changed.set())
        try:
            while not asking.done():
                if not is_last:
                    self.check()
                await self.change()
            answer = asking.result()
        except ProtocolError as error:
            raise Permanent(error.message) if error.code == "refused" else error from None
        finally:
            asking.cancel()
        if answer.get("lost"):
            self.why = "lost"
            self.changed.set()
            raise Lost
        return answer

    def log(self, level: int, text: str, event: str, **more: Any) -> None:
        if not log.isEnabledFor(level):
            return
        names = {name: self.job[name] for name in ("job", "kind", "attempt", "token")}
        log.log(level, text, extra={"event": event, **names, **more})


def _output_of(end: dict[str, Any]) -> Any:
    if end.get("output_omitted"):
        raise Permanent(f"the output of job {end['job']} fits into no message of NATS: store it elsewhere")
    return end.get("output")


class Attempt:
    """What a handler knows of its job."""

    def __init__(self, run: Run, queue: str) -> None:
        self._run, self.queue = run, queue
        job = run.job
        self.job_id: str = job["job"]
        self.kind: str = job["kind"]
        self.attempt: int = job["attempt"]
        self.max_attempts: int = job["max_attempts"]
        self.token: int = job["token"]
        self.claim: str = job["claim"]
        self.checkpoint: Any = job.get("checkpoint")
        self.after_reset: bool = job["after_reset"]
        self.traceparent: str | None = job.get("traceparent")

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop."""
        return self._run.why is not None

    def log(self, line: object) -> None:
        """Adds a line to the log that is kept with the job, the last 64 KiB of each of its last three attempts, if the
        gateway keeps logs (`TENURE_JOB_LOGS`). Returns at once, also in a thread."""
        self._run.tail.add(line)

    def key(self, name: str) -> str:
        """An idempotency key for an effect of this job elsewhere: the same in every attempt."""
        return f"{self.job_id}/{name}"

    def _note(self, stage: str | None, percent: float | None, message: str | None, checkpoint: Any) -> None:
        run = self._run
        run.check()
        texts = {"stage": _well_formed(stage), "message": _well_formed(message)}
        percent = min(max(percent, 0), 100) if isinstance(percent, int | float) else percent
        report = fields_of({**texts, "progress": percent, "checkpoint": checkpoint})
        if (bytes_ := size(report.get("checkpoint", ""))) > run.checkpoint_max:
            raise ValueError(
                f"the checkpoint has {bytes_} bytes of at most {run.checkpoint_max}; store results elsewhere"
            )
        whole = size(run.about({**(run.sending or {}), **(run.pending or {}), **report}))
        if whole > run.entry_max:
            raise ValueError(f"the report has {whole} bytes, but a message of NATS holds at most {run.entry_max}")
        run.report(report)

    def _result(self, name: str, result: Any) -> str:
        return _fitting(f"the result of step {name!r}", result, self._run.checkpoint_max)

    def _is_overdue(self) -> bool:
        return monotonic() - self._run.written_at > self._run.stale_after / 2


def _well_formed(text: str | None) -> str | None:
    return None if text is None else text.encode(errors="replace").decode()


def _fitting(what: str, value: Any, most: int) -> str:
    """The JSON text of a value. No attempt could mend one that has none, or a large one."""
    try:
        text = to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Permanent(f"{what} has no JSON: {error}") from error
    if (bytes_ := size(text)) > most:
        way = "store what is large elsewhere, and pass its place"
        raise Permanent(f"{what} has {bytes_} bytes of at most {most}: {way}")
    return text


class Context(Attempt):
    """The context of an async handler."""

    async def progress(
        self,
        stage: str | None = None,
        percent: float | None = None,
        message: str | None = None,
        *,
        checkpoint: Any = None,
    ) -> None:
        """Reports, which is the sign of life. Returns at once, unless no write succeeded for half of stale_after.

        Raises Lost or Cancelled when the handler should stop."""
        self._note(stage, percent, message, checkpoint)
        await self._while_overdue()

    async def flush(self) -> None:
        """Waits until the last report is written."""
        run = self._run
        while run.pending is not None or run.sending is not None:
            run.sent_at = 0.0
            await self._change()

    async def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Does a step of the job, unless an earlier attempt has recorded it. Returns its result as JSON gives it back:
        the same in each attempt.

        `work` is a plain or an async function. It runs at least once, and is recorded once: a worker that dies between
        the end of the work and its record leaves no trace. What it raises is not recorded, and the step may be called
        again. `name` has 1 to 512 bytes without control characters, and is used once in an attempt."""
        with self._run.call(name):
            is_recorded, result = await self._recorded(name)
            if is_recorded:
                return result
            began_at = monotonic()
            result = work()
            text = self._result(name, await result if inspect.isawaitable(result) else result)
        await self._record(name, text, began_at)
        return json.loads(text)

    async def sleep(self, name: str, seconds: float | timedelta) -> None:
        """Lets the job sleep, without a slot or an attempt: raises Suspended, and returns at once when the handler runs
        again after that time. Put what comes before into steps."""
        lasts = millis(seconds_of(seconds, "seconds"))
        with self._run.call(name):
            answer = await self._run.ask("sleep", fields_of({"name": name, "lasts_ms": lasts}))
        if answer["left_ms"] > 0:
            raise Suspended(None, answer["left_ms"])

    async def event(self, name: str) -> Any:
        """Waits for an event, and returns its payload. Raises Suspended until it has come."""
        has_come, payload = await self._event(name, None)
        if not has_come:
            why = f"an earlier attempt has stopped waiting for event {name!r}"
            raise Permanent(f"{why}: wait for it with event_within")
        return payload

    async def event_within(self, name: str, seconds: float | timedelta, default: Any = None) -> Any:
        """As `event`, at most for a time from the first call on. Returns `default` if it has not come by then."""
        has_come, payload = await self._event(name, seconds_of(seconds, "seconds"))
        return payload if has_come else default

    async def all(self, name: str, jobs: Iterable[NewJob]) -> list[Any]:
        """Enqueues jobs, at most 1000, once in the life of this one, and returns their outputs, in this order. Raises
        Suspended until all have ended, and Permanent if one did not complete."""
        new = [{key: value for key, value in vars(job).items() if value is not None} for job in jobs]
        if len(new) > JOBS_MAX:
            raise Permanent(f"step {name!r} has {len(new)} jobs of at most {JOBS_MAX}")
        text = _fitting(f"the list of the jobs of step {name!r}", new, self._run.entry_max)
        with self._run.call(name):
            if not new:
                return []
            answer = await self._run.ask("all", {**fields_of({"name": name}), "jobs": text})
        if not answer["ended"]:
            raise Suspended(name, None)
        ends = await self._ends(name)
        if failed := [end["job"] for end in ends if not end["completed"]]:
            what = f"{len(failed)} of {len(ends)} jobs of step {name!r} did not complete"
            raise Permanent(f"{what}, the first of them job {failed[0]}: redrive them, and then this job")
        return [_output_of(end) for end in ends]

    async def outputs(self) -> list[Any]:
        """The outputs of the completed jobs that this one follows in its group, in the order of the group."""
        return [_output_of(end) for end in await self._ends() if end["completed"]]

    async def failed_before(self) -> list[str]:
        """The jobs before this one that have failed or were cancelled."""
        return [end["job"] for end in await self._ends() if not end["completed"]]

    async def _recorded(self, name: str) -> tuple[bool, Any]:
        # Nothing is recorded of a job that has not run before.
        if self.token == 1 and not self._run.is_repeated:
            return False, None
        answer = await self._run.ask("recorded", fields_of({"name": name}))
        return answer["recorded"], answer.get("result")

    async def _record(self, name: str, text: str, began_at: float) -> None:
        took = millis(monotonic() - began_at)
        await self._run.ask("step", {**fields_of({"name": name, "took_ms": took}), "result": text})

    async def _event(self, name: str, within: float | None) -> tuple[bool, Any]:
        """Whether the event has come, and its payload. If not, the job has stopped waiting."""
        with self._run.call(name):
            answer = await self._run.ask("event", fields_of({"name": name, "within_ms": millis(within)}))
        if not answer["came"] and not answer.get("late"):
            raise Suspended(name, answer.get("left_ms"))
        return answer["came"], answer.get("payload")

    async def _ends(self, name: str | None = None) -> list[dict[str, Any]]:
        """How the jobs of a step have ended, or those that this one follows."""
        ends: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            answer = await self._run.ask("outputs", fields_of({"name": name, "after": after}))
            ends += answer["ends"]
            after = answer.get("next")
        return ends

    async def _while_overdue(self) -> None:
        while self._is_overdue():
            await self._change()

    async def _change(self) -> None:
        # Of an attempt that is to stop, no report is sent any more.
        self._run.check()
        await self._run.change()
        self._run.check()


class SyncContext(Attempt):
    """The context of a blocking handler, which runs in a thread."""

    def __init__(self, run: Run, queue: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run, queue)
        self._of, self._loop = Context(run, queue), loop

    def progress(
        self,
        stage: str | None = None,
        percent: float | None = None,
        message: str | None = None,
        *,
        checkpoint: Any = None,
    ) -> None:
        """As `Context.progress`."""
        self._note(stage, percent, message, checkpoint)
        if self._is_overdue():
            self._wait(self._of._while_overdue())

    def flush(self) -> None:
        """As `Context.flush`."""
        self._wait(self._of.flush())

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """As `Context.step`. `work` is a plain function, and runs in this thread."""
        with self._run.call(name):
            is_recorded, result = self._wait(self._of._recorded(name))
            if is_recorded:
                return result
            began_at = monotonic()
            text = self._result(name, work())
        self._wait(self._of._record(name, text, began_at))
        return json.loads(text)

    def sleep(self, name: str, seconds: float | timedelta) -> None:
        """As `Context.sleep`."""
        self._wait(self._of.sleep(name, seconds))

    def event(self, name: str) -> Any:
        """As `Context.event`."""
        return self._wait(self._of.event(name))

    def event_within(self, name: str, seconds: float | timedelta, default: Any = None) -> Any:
        """As `Context.event_within`."""
        return self._wait(self._of.event_within(name, seconds, default))

    def all(self, name: str, jobs: Iterable[NewJob]) -> list[Any]:
        """As `Context.all`."""
        return self._wait(self._of.all(name, list(jobs)))

    def outputs(self) -> list[Any]:
        """As `Context.outputs`."""
        return self._wait(self._of.outputs())

    def failed_before(self) -> list[str]:
        """As `Context.failed_before`."""
        return self._wait(self._of.failed_before())

    def _wait(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
