"""The log of an attempt: the end of what it prints, which a gateway keeps with the job."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from time import monotonic

from ._wire import to_json

BYTES_MAX = 64 * 1024
EVERY = 5.0
"""Seconds between two reports of a log. The last lines go with the end of the attempt."""


class Tail:
    """The last lines of an attempt. Keeps nothing if its gateway keeps no logs."""

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._lines: list[str] = []
        self._chars, self._is_cut, self._has_more, self._sent_at = 0, False, False, 0.0
        self._lock = threading.Lock()

    def add(self, line: object) -> None:
        if not self._is_kept:
            return
        text = str(line)
        line = text[-BYTES_MAX:].rstrip("\r\n") + "\n"
        with self._lock:
            self._is_cut |= len(text) > BYTES_MAX
            self._lines.append(line)
            self._chars += len(line)
            self._has_more = True
            # Not at each line: joining the text costs as much as it has characters.
            if self._chars > 2 * BYTES_MAX:
                self._shorten()

    def _shorten(self) -> str:
        """Cuts the first lines off, so that the rest begins with a whole line, if one is short enough."""
        whole = "".join(self._lines).encode(errors="replace")
        text = whole[-BYTES_MAX:]
        if len(whole) > BYTES_MAX:
            self._is_cut = True
            rest = text[text.find(b"\n") + 1 :]
            text = rest or text
        kept = text.decode(errors="ignore")
        self._lines, self._chars = [kept], len(kept)
        return kept

    def take(self) -> str | None:
        """What is to be reported, as JSON text. None: nothing is new, or it is too soon."""
        with self._lock:
            now = monotonic()
            if not self._has_more or now - self._sent_at < EVERY:
                return None
            self._has_more, self._sent_at = False, now
            return to_json({"text": self._shorten(), "is_cut": self._is_cut})

    def whole(self) -> str | None:
        """All of it, for the end of the attempt: a gateway may have had no time to write an earlier part. None: nothing
        was added."""
        with self._lock:
            return to_json({"text": self._shorten(), "is_cut": self._is_cut}) if self._lines else None

    def put_back(self) -> None:
        """What was taken is not reported."""
        with self._lock:
            self._has_more = bool(self._lines)


RUNNING: ContextVar[Tail | None] = ContextVar("tenure_running", default=None)
"""The log of the job whose handler runs here."""


class LogHandler(logging.Handler):
    """Adds what a handler logs to the log that is kept with its job: `logging.getLogger().addHandler(LogHandler())`.

    Tells a job by the context in which its handler runs: a thread that the handler starts itself has another one, and a
    batch has none."""

    def emit(self, record: logging.LogRecord) -> None:
        tail = RUNNING.get()
        if tail is None or record.name == "tenure":
            return
        try:
            tail.add(self.format(record))
        except Exception:
            self.handleError(record)
