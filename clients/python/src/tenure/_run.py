"""An attempt that runs here, and what its handler sees of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ._errors import Cancelled, Lost, TenureError
from ._wire import size, to_json

log = logging.getLogger("tenure")

Fields = dict[str, str]
"""The fields of a JSON object, each as JSON text: a value is written once, when it is said."""


def fields_of(values: dict[str, Any]) -> Fields:
    return {name: to_json(value) for name, value in values.items() if value is not None}


def text_of(fields: Fields) -> str:
    return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"


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
    task: asyncio.Task[None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.names = {name: to_json(self.job[name]) for name in ("job", "token", "receipt")}

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
            self.sending = None
        self.changed.set()

    async def change(self) -> None:
        """Waits for the next change."""
        self.changed.clear()
        await self.changed.wait()

    def check(self) -> None:
        if self.why == "lost":
            raise Lost("the job is no longer this worker's")
        if self.why:
            raise Cancelled(self.why)
        if self.refused is not None:
            raise TenureError(f"a report was refused: {self.refused}")

    def log(self, level: int, text: str, event: str, **more: Any) -> None:
        if not log.isEnabledFor(level):
            return
        names = {name: self.job[name] for name in ("job", "kind", "attempt", "token")}
        log.log(level, text, extra={"event": event, **names, **more})


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

    def key(self, name: str) -> str:
        """An idempotency key for an effect of this job elsewhere: the same in every attempt."""
        return f"{self.job_id}/{name}"

    def _note(self, stage: str | None, percent: float | None, message: str | None, checkpoint: Any) -> None:
        run = self._run
        run.check()
        texts = {"stage": _well_formed(stage), "message": _well_formed(message)}
        report = fields_of({**texts, "progress": percent, "checkpoint": checkpoint})
        if (bytes_ := size(report.get("checkpoint", ""))) > run.checkpoint_max:
            raise ValueError(
                f"the checkpoint has {bytes_} bytes of at most {run.checkpoint_max}; store results elsewhere"
            )
        whole = size(run.about({**(run.sending or {}), **(run.pending or {}), **report}))
        if whole > run.entry_max:
            raise ValueError(f"the report has {whole} bytes, but a message of NATS holds at most {run.entry_max}")
        run.report(report)

    def _is_overdue(self) -> bool:
        return monotonic() - self._run.written_at > self._run.stale_after / 2


def _well_formed(text: str | None) -> str | None:
    return None if text is None else text.encode(errors="replace").decode()


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
            asyncio.run_coroutine_threadsafe(self._of._while_overdue(), self._loop).result()

    def flush(self) -> None:
        """As `Context.flush`."""
        asyncio.run_coroutine_threadsafe(self._of.flush(), self._loop).result()
