"""Batches: one call of a handler for many jobs. The own handler of each job waits here for its part of the result."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._errors import Lost, Retry, Snooze, TenureError
from ._run import Context, SyncContext, called, is_async
from ._wire import repeat

if TYPE_CHECKING:
    from ._worker import Worker

log = logging.getLogger("tenure")


@dataclass
class Item:
    """One job of a batch."""

    payload: Any
    context: Any
    """A `Context`; of a plain function, a `SyncContext`."""


@dataclass(eq=False)
class Entry:
    payload: Any
    context: Context
    ended: asyncio.Future[Any]

    @property
    def losses(self) -> int:
        return int(self.context._run.job.get("losses", 0))

    @property
    def is_over(self) -> bool:
        return self.ended.done() or self.context.cancelled

    def end(self, output: Any) -> None:
        """Ends the wait of this job: with an output, or an error to raise."""
        if self.ended.done():
            return
        if isinstance(output, BaseException):
            # A future takes no `StopIteration`, and a cancellation of its own would look like one of the job.
            odd = isinstance(output, StopIteration | asyncio.CancelledError)
            self.ended.set_exception(TenureError(f"{type(output).__name__}: {output}") if odd else output)
        else:
            self.ended.set_result(output)


class Batches:
    """The batches of one kind in one worker."""

    def __init__(self, worker: Worker, handler: Callable[..., Any], up_to: int, within: float) -> None:
        self._worker, self._handler, self._up_to, self._within = worker, handler, up_to, within
        self._is_async = is_async(handler)
        self._fresh: list[Entry] = []
        self._suspects: list[Entry] = []
        """Jobs that were lost, and may be the cause: one batch of them runs at a time."""
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._runs_suspects = False

    async def join(self, payload: Any, context: Context) -> Any:
        """The handler of one job: waits for its batch."""
        loop = asyncio.get_running_loop()
        entry = Entry(payload, context, loop.create_future())
        if entry.losses:
            self._suspects.append(entry)
            if not self._runs_suspects:
                self._runs_suspects = True
                self._spawn(self._run_suspects())
        else:
            self._fresh.append(entry)
            if len(self._fresh) >= self._up_to:
                self._begin()
            elif self._timer is None:
                self._timer = loop.call_later(self._within, self._begin)
        try:
            while True:
                done, _ = await asyncio.wait((entry.ended,), timeout=context._run.stale_after / 3)
                if done:
                    return entry.ended.result()
                if entry in self._fresh or entry in self._suspects:
                    # The handler has not seen the job yet, so the silence is not the handler's.
                    context._run.report({})
        finally:
            for waiting in (self._fresh, self._suspects):
                if entry in waiting:
                    waiting.remove(entry)
            entry.ended.cancel()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._fresh = self._fresh, []
        if batch:
            self._spawn(self._run(batch))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _limit(self, losses: int) -> int:
        return max(self._up_to >> min(losses, 30), 1)

    async def _run_suspects(self) -> None:
        try:
            while self._suspects:
                if self._limit(self._suspects[0].losses) > 1:
                    await asyncio.sleep(self._within)
                batch: list[Entry] = []
                limit = self._up_to
                while self._suspects:
                    limit = min(limit, self._limit(self._suspects[0].losses))
                    if len(batch) >= limit:
                        break
                    batch.append(self._suspects.pop(0))
                if len(batch) == 1 and not await self._is_alone(batch[0]):
                    continue
                await self._run(batch)
        finally:
            self._runs_suspects = False

    async def _is_alone(self, entry: Entry) -> bool:
        """Says that a suspect runs alone: from now on its loss is charged. False: it must not run."""
        run = entry.context._run
        try:
            said = await repeat(lambda: run.once("report", f'"reports":[{run.about({"alone": "true"})}]'))
        except Exception as error:
            entry.end(error)
            return False
        if said["results"] == ["lost"]:
            run.why = "lost"
            entry.end(Lost())
        return not entry.is_over

    async def _run(self, batch: list[Entry]) -> None:
        """Runs a batch; one whose call raises, in halves."""
        left = [batch]
        while left:
            batch = [entry for entry in left.pop() if not entry.is_over]
            if not batch:
                continue
            try:
                error = await self._call(batch)
            except Exception as odd:
                error = odd
            if error is None:
                continue
            if len(batch) == 1 or isinstance(error, Retry | Snooze):
                for entry in batch:
                    entry.end(error)
                continue
            log.warning("a batch of %d jobs failed; it runs again in halves: %s", len(batch), type(error).__name__)
            middle = (len(batch) + 1) // 2
            left += [batch[middle:], batch[:middle]]

    async def _awaited(self, items: list[Item]) -> tuple[Any, BaseException | None]:
        """Runs an async handler. The event loop would end with a `SystemExit` of a task."""
        try:
            return await self._handler(items), None
        except GeneratorExit:
            raise
        except BaseException as error:
            return None, error

    async def _call(self, batch: list[Entry]) -> BaseException | None:
        """Calls the handler once, and hands out its outputs. Returns the error of the whole."""
        if self._is_async:
            call = asyncio.ensure_future(self._awaited([Item(entry.payload, entry.context) for entry in batch]))
            # A call for which no attempt waits any more is dropped, as a handler that is to stop.
            waits = asyncio.ensure_future(asyncio.wait([entry.ended for entry in batch]))
            await asyncio.wait((call, waits), return_when=asyncio.FIRST_COMPLETED)
            waits.cancel()
            if not call.done():
                call.cancel()
                await asyncio.wait((call,))
                return None
            outputs, error = call.result()
        else:
            loop = asyncio.get_running_loop()
            items = [Item(of.payload, SyncContext(of.context._run, of.context.queue, loop)) for of in batch]
            runs = [entry.context._run for entry in batch]
            for run in runs:
                # Its thread cannot be ended: the attempt must not end before it.
                run.may_cancel = False
            outputs, error = await loop.run_in_executor(self._worker._pool, called, self._handler, items)
            for run in runs:
                run.may_cancel = run.is_running
            if error is None and inspect.isawaitable(outputs):
                outputs = await outputs
        if error is not None:
            return error
        if not isinstance(outputs, list | tuple) or len(outputs) != len(batch):
            said = f"{len(outputs)} outputs" if isinstance(outputs, list | tuple) else type(outputs).__name__
            what = f"a list with an output for each of its {len(batch)} jobs"
            return TenureError(f"a batch handler returns {what}, not {said}")
        for entry, output in zip(batch, outputs, strict=True):
            entry.end(output)
        return None
