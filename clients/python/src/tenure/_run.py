"""An attempt that runs here, and what its handler sees of it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ._errors import Cancelled, Lost, TenureError

log = logging.getLogger("tenure")


@dataclass
class Kind:
    handler: Callable[..., Any]
    is_async: bool
    rules: dict[str, Any]
    timeout: float | None
    keepalive: bool


@dataclass
class Run:
    """An attempt that runs here."""

    job: dict[str, Any]
    kind: Kind
    stale_after: float
    checkpoint_max: int
    began: bool = False
    was_refused: bool = False
    written_at: float = field(default_factory=monotonic)
    sent_at: float = 0.0
    pending: dict[str, Any] | None = None
    is_sending: bool = False
    why: str | None = None
    refused: str | None = None
    task: asyncio.Task[None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def about(self, entry: dict[str, Any]) -> dict[str, Any]:
        job = self.job
        return {**entry, "job": job["job"], "token": job["token"], "receipt": job["receipt"]}

    def report(self, later: dict[str, Any]) -> None:
        with self.lock:
            self.pending = {**(self.pending or {}), **later}

    def take_report(self) -> dict[str, Any] | None:
        with self.lock:
            report, self.pending = self.pending, None
        return report

    def put_back(self, earlier: dict[str, Any]) -> None:
        with self.lock:
            self.pending = {**earlier, **(self.pending or {})}

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

    def _note(self, stage: str | None, percent: float | None, message: str | None, checkpoint: Any) -> bool:
        self._run.check()
        said = {"stage": stage, "progress": percent, "message": message, "checkpoint": checkpoint}
        text = json.dumps({k: v for k, v in said.items() if v is not None}, allow_nan=False)
        if len(text) > self._run.checkpoint_max:
            raise ValueError(
                f"the report has {len(text)} bytes of at most {self._run.checkpoint_max}; store results elsewhere"
            )
        self._run.report(json.loads(text))
        return monotonic() - self._run.written_at > self._run.stale_after / 2


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
        if self._note(stage, percent, message, checkpoint):
            await self._written()

    async def flush(self) -> None:
        """Waits until the last report is written."""
        run = self._run
        while run.pending is not None or run.is_sending:
            run.sent_at = 0.0
            await self._written()

    async def _written(self) -> None:
        # Of an attempt that is to stop, no report is sent any more.
        self._run.check()
        self._run.changed.clear()
        await self._run.changed.wait()
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
        if self._note(stage, percent, message, checkpoint):
            asyncio.run_coroutine_threadsafe(self._of._written(), self._loop).result()

    def flush(self) -> None:
        """As `Context.flush`."""
        asyncio.run_coroutine_threadsafe(self._of.flush(), self._loop).result()
