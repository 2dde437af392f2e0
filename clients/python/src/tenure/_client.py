"""A producer: enqueues jobs, and looks at them."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from ._wire import ANSWERED_WITHIN, Wire, check_queue, millis, to_json


@dataclass(frozen=True)
class Enqueued:
    """The answer to an enqueue. `created` is false if another job holds the key."""

    job: str
    created: bool


@dataclass(frozen=True)
class Job:
    """A job as its producer sees it."""

    job: str
    kind: str
    status: str
    attempt: int
    max_attempts: int
    stage: str | None
    progress: float | None
    message: str | None
    output: Any
    last_error: str | None
    ended: bool


class Client:
    """A producer. `async with Client(url) as client: ...`"""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "jobs",
        inbox_prefix: str | None = None,
        tls: ssl.SSLContext | None = None,
        nats_options: dict[str, Any] | None = None,
    ) -> None:
        self._connect = (url, prefix, inbox_prefix, tls, nats_options or {})
        self._wire: Wire | None = None

    async def __aenter__(self) -> Client:
        self._wire = await Wire.connect(*self._connect)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._wire:
            await self._wire.close()

    async def _ask(
        self, queue: str, request: str, body: dict[str, Any], within: float = ANSWERED_WITHIN
    ) -> dict[str, Any]:
        assert self._wire, "enter the client first: async with Client(url) as client"
        return await self._wire.ask(f"p.{check_queue(queue)}.{request}", to_json({"v": 1, **body}), within)

    async def enqueue(
        self,
        queue: str,
        kind: str,
        payload: Any,
        *,
        key: str | None = None,
        delay: float | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        lane: str | None = None,
        priority: int | None = None,
        tags: Iterable[str] | None = None,
        traceparent: str | None = None,
    ) -> Enqueued:
        """Enqueues a job. It goes on until a gateway answers; if it is cancelled, the job may exist."""
        body: dict[str, Any] = {"kind": kind, "payload": payload}
        body |= {"key": key or str(uuid.uuid4()), "delay_ms": millis(delay), "max_attempts": max_attempts}
        body |= {"lane": lane, "priority": priority, "traceparent": traceparent}
        body |= {"tags": list(tags) if tags else None}
        body |= {"run_at": run_at.isoformat() if run_at else None}
        return Enqueued(**await self._ask(queue, "enqueue", body))

    async def job(self, queue: str, job: str) -> Job:
        """Looks at a job."""
        return _job(await self._ask(queue, "job", {"job": job}))

    async def wait(self, queue: str, job: str, timeout: float | None = None) -> Job:
        """Waits for the end of a job, at most for `timeout` seconds: look at `ended`."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while True:
            left = 20.0 if until is None else min(20.0, max(0.0, until - loop.time()))
            body = {"job": job, "wait_ms": millis(left)}
            seen = _job(await self._ask(queue, "wait", body, left + ANSWERED_WITHIN))
            if seen.ended or (until is not None and loop.time() >= until):
                return seen

    async def watch(self, queue: str, job: str, every: float = 1.0) -> AsyncIterator[Job]:
        """Yields the job at each change, until it has ended."""
        before: Job | None = None
        while before is None or not before.ended:
            seen = await (self.job(queue, job) if before is None else self.wait(queue, job, every))
            if seen != before:
                yield seen
            before = seen

    async def cancel(self, queue: str, job: str) -> bool:
        """Cancels a job. False: it runs, and its handler was told; or it had ended."""
        return bool((await self._ask(queue, "cancel", {"job": job}))["cancelled"])

    async def signal(self, queue: str, job: str, name: str, payload: Any = None) -> str:
        """Tells a job of an event: `delivered`; `known`, if one of that name had come before, which counts; `late`, if
        the job has stopped waiting for it; `name_taken`, if a step of the job has that name; or `finished`."""
        return str((await self._ask(queue, "signal", {"job": job, "name": name, "payload": payload}))["answer"])


def _job(answer: dict[str, Any]) -> Job:
    return Job(**{field.name: answer.get(field.name) for field in fields(Job)})  # type: ignore[arg-type]
