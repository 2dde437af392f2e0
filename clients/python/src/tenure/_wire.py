"""Requests to gateways. Each may be repeated; so a lost answer is no error."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from time import monotonic
from typing import Any

import nats
from nats.aio.client import Client as Nats
from nats.errors import ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError

from ._errors import ProtocolError, TenureError

ANSWERED_WITHIN = 5.0
"""How long to wait for an answer, in seconds, besides the time that the request itself asks to wait."""

READ_WITHIN = 2.0
"""How late an answer may be read, in seconds."""


class Unanswered(TenureError):
    """No gateway answered in time, or one asked to repeat the request."""


class Wire:
    """A connection to NATS, and the requests over it."""

    def __init__(self, nc: Nats, prefix: str) -> None:
        self.nc = nc
        self.prefix = f"tenure.{prefix}"

    @classmethod
    async def connect(
        cls,
        url: str,
        prefix: str,
        inbox_prefix: str | None,
        tls: ssl.SSLContext | None,
        options: dict[str, Any],
    ) -> Wire:
        """Connects, and reconnects for ever."""
        own: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.25, "name": "tenure"}
        if inbox_prefix:
            own["inbox_prefix"] = inbox_prefix.encode()
        if tls:
            own["tls"] = tls
        return cls(await nats.connect(url, **{**own, **options}), prefix)

    async def once(self, subject: str, body: str, within: float = ANSWERED_WITHIN) -> dict[str, Any]:
        """Sends a request once."""
        asked_at = monotonic()
        try:
            message = await self.nc.request(f"{self.prefix}.{subject}", body.encode(), timeout=within)
            answer = json.loads(message.data)
        except (MaxPayloadError, ConnectionClosedError) as error:
            # No repetition would mend these.
            raise TenureError(f"{subject}: {error}") from error
        except (NatsError, asyncio.TimeoutError, ValueError) as error:
            raise Unanswered(f"{subject}: {error or type(error).__name__}") from error
        late = monotonic() - asked_at - answer.get("ok", {}).get("waited_ms", within * 1000 - 1000) / 1000
        if late > READ_WITHIN:
            # A gateway that got no confirmation gives its jobs back: they may run elsewhere by now.
            raise Unanswered(f"{subject}: the answer was read too late; this process was frozen, or its loop blocked")
        if message.reply:
            # The gateway waits for this before it lets go of the jobs that it hands over.
            await message.respond(b"")
        if (failed := answer.get("error")) is None:
            return dict(answer["ok"])
        if failed["retry"] and failed["code"] != "hello_first":
            raise Unanswered(f"{subject}: {failed['message']}")
        raise ProtocolError(failed["code"], failed["message"])

    async def ask(self, subject: str, body: str, within: float = ANSWERED_WITHIN) -> dict[str, Any]:
        """Repeats a request until it is answered."""
        pauses = Pauses()
        while True:
            try:
                return await self.once(subject, body, within)
            except Unanswered:
                await pauses.next()


class Pauses:
    """Pauses that double from 100 ms up to 5 s, each with jitter."""

    def __init__(self) -> None:
        self.pause = 0.1

    async def next(self) -> None:
        await asyncio.sleep(self.pause * random.uniform(0.5, 1.0))
        self.pause = min(self.pause * 2, 5.0)


def millis(seconds: float | None) -> int | None:
    """Whole milliseconds."""
    return None if seconds is None else round(seconds * 1000)
