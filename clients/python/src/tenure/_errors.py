"""What a handler raises to end its attempt, and what it may get from its context."""

from __future__ import annotations

import math
from datetime import timedelta

# Ten years: the longest time that a gateway takes.
SECONDS_MAX = 10 * 365 * 86_400.0


def seconds_of(value: float | timedelta, name: str) -> float:
    """Checks a time to wait. One that has passed already is none."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or math.isnan(seconds):
        raise ValueError(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    return float(min(max(seconds, 0.0), SECONDS_MAX))


class TenureError(Exception):
    """The base of all errors of this package."""


class ProtocolError(TenureError):
    """A gateway refused a request. Repeating it would not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Lost(TenureError):
    """The job is no longer this worker's. Nothing that its handler does counts."""

    def __init__(self, message: str = "the job is no longer this worker's") -> None:
        super().__init__(message)


class Cancelled(TenureError):
    """The job is to be cancelled, its time is over, or the worker stops."""


class Retry(TenureError):
    """Raise it to have the job tried again, after `after` seconds, or after the usual backoff."""

    def __init__(
        self, error: str = "the handler asked for another attempt", after: float | timedelta | None = None
    ) -> None:
        super().__init__(error)
        self.after = None if after is None else seconds_of(after, "after")


class Permanent(TenureError):
    """Raise it when no attempt could succeed: the job becomes a dead letter."""


class Snooze(TenureError):
    """Raise it to have the job run again after `seconds`. The attempt does not count."""

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = seconds_of(seconds, "seconds")
        super().__init__(f"snoozed for {self.seconds} s")


class Suspended(TenureError):
    """The job waits: for the end of a sleep, an event, or jobs of its own. It is no failure: let it pass. The attempt
    ends and does not count, and the handler begins anew when that has come.

    `awaits`: the name of an event or a step; None for a sleep. `left_ms`: None for a wait without an end."""

    def __init__(self, awaits: str | None, left_ms: int | None) -> None:
        waits = "sleeps" if awaits is None else f"waits for {awaits!r}"
        left = "" if left_ms is None else f" for {'' if awaits is None else 'at most '}{left_ms} ms"
        super().__init__(f"the job {waits}{left}; let this error pass")
        self.awaits, self.left_ms = awaits, left_ms


def suspension(error: BaseException | None) -> Suspended | None:
    """The wait of which an error tells: itself, by its cause, or as a group of such errors, as of a `TaskGroup`."""
    seen: set[int] = set()
    while error is not None and not isinstance(error, Suspended) and id(error) not in seen:
        seen.add(id(error))
        group = getattr(error, "exceptions", None)
        if isinstance(group, tuple) and group:
            waits = [suspension(inner) for inner in group]
            return waits[0] if all(waits) else None
        error = error.__cause__
    return error if isinstance(error, Suspended) else None


class Cancel(TenureError):
    """Raise it to end the job as cancelled, for this reason."""
