"""Batches: one call of a handler for many jobs. The own handler of each job waits here for its part of the result."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._errors import Cancelled, Lost, Retry, Snooze, TenureError
from ._log import RUNNING
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
    calls: int = 0
    is_called: bool = False
    """A call of the handler has the job: its silence is the handler's."""

    @property
    def losses(self) -> int:
        return int(self.context._run.job.get("losses", 0))

    def ends_before_a_call(self) -> bool:
        """Ends the wait of a job that is to stop, or has stopped."""
        if (why := self.context._run.why) is not None:
            self.end(Lost() if why == "lost" else Cancelled(why))
        return self.ended.done()

    def called_with(self, is_alone: bool) -> Any:
        """The payload of one more call. Each call gets its own: a handler may change what it has got."""
        self.calls += 1
        self.is_called = True
        run = self.context._run
        run.began = True
        if self.calls > 1:
            run.repeat()
        return self.payload if is_alone else copy.deepcopy(self.payload)

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


async def _awaited(work: Any) -> tuple[Any, BaseException | None]:
    """Awaits an async handler. The event loop would end with a `SystemExit` of a task."""
    try:
        return await work, None
    except GeneratorExit:
        raise
    except BaseException as error:
        return None, error


class Batches:
    """The batches of one kind in one worker."""

    def __init__(self, worker: Worker, handler: Callable[..., Any], up_to: int, within: float, *, halves: bool) -> None:
        self._worker, self._handler, self._up_to, self._within = worker, handler, up_to, within
        self._halves = halves
        self._is_async = is_async(handler)
        self._fresh: list[Entry] = []
        self._suspects: list[Entry] = []
        """Jobs that were lost, and may be the cause: one batch of them runs at a time."""
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._runs_suspects = False
        self._beside: set[asyncio.Future[None]] = set()
        """The batches that run."""
        self._alone = asyncio.Event()
        """Not set while a suspect runs alone, or waits for the others to end."""
        self._alone.set()

    async def join(self, payload: Any, context: Context) -> Any:
        """The handler of one job: waits for its batch."""
        # What begins the batch inherits this context: a call for many jobs has no log of one.
        RUNNING.set(None)
        loop = asyncio.get_running_loop()
        entry = Entry(payload, context, loop.create_future())
        # The handler has not begun it: then a stop of the worker gives it back, and its time is up without a charge.
        context._run.began = False
        if self._halves and entry.losses:
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
                if not entry.is_called:
                    # It waits for its batch, or for the other half of it.
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
                if len(batch) == 1:
                    await self._run_alone(batch[0])
                else:
                    await self._run(batch)
        finally:
            self._runs_suspects = False

    async def _run_alone(self, entry: Entry) -> None:
        """Runs a suspect. No other batch of the kind runs meanwhile: if the process dies, the suspect is the cause."""
        self._alone = asyncio.Event()
        try:
            while self._beside:
                await asyncio.wait(list(self._beside))
            if await self._is_alone(entry):
                await self._run([entry], is_alone=True)
            # Until its end is written, it would be charged for what the next suspect does.
            run = entry.context._run
            while self._worker._runs.get(run.job["claim"]) is run:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:
            self._alone.set()

    async def _is_alone(self, entry: Entry) -> bool:
        """Says that a suspect runs alone: from now on its loss is charged. False: it must not run."""
        run = entry.context._run

        async def once() -> Any:
            answer = await run.once("report", f'"reports":[{run.about({"alone": "true"})}]')
            result = answer["results"][0]
            if isinstance(result, dict) and result["error"]["retry"]:
                raise TenureError(result["error"]["message"])
            return result

        pause = 0.1
        while not entry.ends_before_a_call():
            try:
                result = await repeat(once)
                break
            except TenureError as error:
                log.debug("a job of a batch could not be marked as alone; the worker tries again: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
        else:
            return False
        if result == "lost":
            run.why = "lost"
            entry.end(Lost())
        elif isinstance(result, dict):
            entry.end(TenureError(result["error"]["message"]))
        return not entry.ends_before_a_call()

    async def _run(self, batch: list[Entry], *, is_alone: bool = False) -> None:
        """Runs a batch beside others, or alone; one whose call raises, in halves."""
        if is_alone:
            return await self._halve(batch)
        while not self._alone.is_set():
            await self._alone.wait()
        beside = asyncio.get_running_loop().create_future()
        self._beside.add(beside)
        try:
            await self._halve(batch)
        finally:
            self._beside.discard(beside)
            beside.set_result(None)

    async def _halve(self, batch: list[Entry]) -> None:
        left = [batch]
        while left:
            batch = [entry for entry in left.pop() if not entry.ends_before_a_call()]
            if not batch:
                continue
            try:
                error = await self._call(batch)
            except Exception as odd:
                error = odd
            for entry in batch:
                entry.is_called = False
            if error is None:
                continue
            if len(batch) == 1 or isinstance(error, Retry | Snooze):
                for entry in batch:
                    entry.end(error)
                continue
            log.warning("a batch of %d jobs failed; it runs again in halves: %s", len(batch), type(error).__name__)
            middle = (len(batch) + 1) // 2
            left += [batch[middle:], batch[:middle]]

    async def _call(self, batch: list[Entry]) -> BaseException | None:
        """Calls the handler once, and hands out its outputs. Returns the error of the whole."""
        if self._is_async:
            items = [Item(entry.called_with(len(batch) == 1), entry.context) for entry in batch]
            call = asyncio.ensure_future(_awaited(self._handler(items)))
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
            contexts = [SyncContext(of.context._run, of.context.queue, loop) for of in batch]
            items = [Item(of.called_with(len(batch) == 1), ctx) for of, ctx in zip(batch, contexts, strict=True)]
            runs = [entry.context._run for entry in batch]
            for run in runs:
                # Its thread cannot be ended: the attempt must not end before it.
                run.may_cancel = False
            outputs, error = await loop.run_in_executor(self._worker._pool, called, self._handler, items)
            for run in runs:
                run.may_cancel = run.is_running
            if error is None and inspect.isawaitable(outputs):
                outputs, error = await _awaited(outputs)
        if error is not None:
            return error
        if not isinstance(outputs, list | tuple) or len(outputs) != len(batch):
            said = f"{len(outputs)} outputs" if isinstance(outputs, list | tuple) else type(outputs).__name__
            what = f"a list with an output for each of its {len(batch)} jobs"
            return TenureError(f"a batch handler returns {what}, not {said}")
        for entry, output in zip(batch, outputs, strict=True):
            entry.end(output)
        return None
