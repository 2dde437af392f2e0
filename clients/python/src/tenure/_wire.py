"""Requests to gateways. Each may be repeated; so a lost answer is no error."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import ssl
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar

import nats
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, MaxPayloadError, NoRespondersError
from nats.errors import Error as NatsError

from ._errors import ProtocolError, TenureError

log = logging.getLogger("tenure")
Answer = TypeVar("Answer")

ANSWERED_WITHIN = 5.0
"""How long to wait for an answer, in seconds, besides the time that the request itself asks to wait."""

READ_WITHIN = 2.0
"""How late an answer may be read, in seconds."""

FIND_WITHIN = (0.25, 0.25, 0.5, 0.5, 1.0)
"""How long each ping waits that looks for a gateway, in seconds. Each goes to any: the next one may answer."""

KEPT_FOR = 30.0
"""How long requests go to one gateway, in seconds, before another may get them: load spreads over new ones, too."""

ANY_FOR = 2.0
"""How long requests go to any gateway, in seconds, when none has answered a ping."""

PING_EVERY, PONG_WITHIN = 0.5, 1.0
"""How often a gateway is pinged for which a request waits, and how long it has to answer, in seconds."""

PING = b'{"v":1}'

TOLD_EVERY = 30.0
"""How often the log says that a request is still repeated, in seconds."""

# One for all: `json.dumps` with separators makes one each time.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def to_json(value: Any) -> str:
    """JSON text that has an encoding: half a surrogate pair is escaped."""
    text = _encode(value)
    return text if text.isascii() or _has_encoding(text) else _encode_ascii(value)


def _has_encoding(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def size(text: str) -> int:
    """The bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def check_queue(queue: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", queue):
        raise ValueError(f"a queue has a name of 1 to 64 letters, digits, _ and -, not {queue!r}")
    return queue


class Unanswered(TenureError):
    """No gateway answered in time, or one asked to repeat the request."""


class Gateway:
    """The gateway that gets the requests. `at` is what its address adds to their subjects; empty: any gateway."""

    def __init__(self, at: str = "", kept_for: float = KEPT_FOR) -> None:
        self.at, self.until = at, monotonic() + kept_for
        self.waiting = 0
        """The requests that it has not answered."""
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    @property
    def is_kept(self) -> bool:
        return monotonic() < self.until and not self.lost.done()


class Wire:
    """A connection to NATS, and the requests over it."""

    nc: Nats

    def __init__(
        self,
        url: str,
        prefix: str,
        inbox_prefix: str | None,
        tls: ssl.SSLContext | None,
        options: dict[str, Any],
    ) -> None:
        own: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.25, "name": "tenure"}
        if inbox_prefix:
            own["inbox_prefix"] = inbox_prefix.encode()
        if tls:
            own["tls"] = tls
        self.prefix = f"tenure.{prefix}"
        self._url, self._options = url, {**own, **options}
        self._subscriptions: list[tuple[str, Callable[[Msg], Awaitable[None]]]] = []
        self._is_closed = False
        self._opening: asyncio.Task[None] | None = None
        self._gateway: Gateway | None = None
        self._finding = asyncio.Lock()
        self._watches: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, *about: Any) -> Wire:
        """Connects, and reconnects for ever."""
        wire = cls(*about)
        await wire._open()
        return wire

    async def _open(self) -> None:
        nc = await nats.connect(self._url, **self._options)
        try:
            for subject, callback in self._subscriptions:
                await nc.subscribe(subject, cb=callback)
        except BaseException:
            await nc.close()
            raise
        self.nc = nc

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> None:
        """Subscribes, in each later connection, too."""
        self._subscriptions.append((subject, callback))
        await self.nc.subscribe(subject, cb=callback)
        await self.nc.flush()

    async def close(self) -> None:
        self._is_closed = True
        if self._opening:
            self._opening.cancel()
        for watch in self._watches:
            watch.cancel()
        await self.nc.close()

    def _reopen(self) -> None:
        """Connects anew: nats-py gives a connection up for good when the server refuses it once."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._try_open())

    async def _try_open(self) -> None:
        try:
            await self._open()
        except Exception as error:
            log.warning("could not connect to NATS again: %s", error)

    async def once(self, subject: str, body: str, within: float = ANSWERED_WITHIN) -> dict[str, Any]:
        """Sends a request once."""
        try:
            for is_last in (False, True):
                gateway = await self._find(subject.rpartition(".")[0])
                asked_at = monotonic()
                try:
                    message = await self._request(gateway, subject, body.encode(), within)
                    break
                except NoRespondersError:
                    # It has stopped: another one gets the request.
                    gateway.lose()
                    if is_last or not gateway.at:
                        raise
            answer = json.loads(message.data)
        except MaxPayloadError as error:
            # No repetition would mend this.
            raise TenureError(f"{subject}: {error}") from error
        except ConnectionClosedError as error:
            if self._is_closed:
                raise TenureError(f"{subject}: {error}") from error
            self._reopen()
            raise Unanswered(f"{subject}: {error}") from error
        except NoRespondersError as error:
            raise Unanswered(f"{subject}: no gateway answers; start one with `tenure gateway` ({error})") from error
        except (NatsError, asyncio.TimeoutError, ValueError, RecursionError) as error:
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
        if failed["code"] == "unavailable" and self._gateway is gateway and gateway.at:
            # It may be this gateway's trouble alone: what follows goes to the next one that is found.
            self._gateway = None
        if failed["retry"] and failed["code"] != "hello_first":
            raise Unanswered(f"{subject}: {failed['message']}")
        if failed["code"] == "unknown_request" and gateway.at:
            # By an older gateway, which gets what is meant for others, too.
            self._gateway = Gateway()
            raise Unanswered(f"{subject}: {failed['message']}")
        raise ProtocolError(failed["code"], failed["message"])

    async def _request(self, gateway: Gateway, subject: str, body: bytes, within: float) -> Msg:
        """Sends a request to a gateway. It is over once the gateway is lost."""
        request = self.nc.request(f"{self.prefix}.{subject}{gateway.at}", body, timeout=within)
        asked: asyncio.Future[Any] = asyncio.ensure_future(request)
        gateway.waiting += 1
        try:
            await asyncio.wait((asked, gateway.lost), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                message: Msg = asked.result()
                return message
            raise Unanswered(f"{subject}: the gateway does not answer; another one is asked")
        finally:
            gateway.waiting -= 1
            asked.cancel()

    async def _find(self, of: str) -> Gateway:
        """The gateway that requests go to, or any, if none can be told from the others."""
        async with self._finding:
            if self._gateway is None or not self._gateway.is_kept:
                self._gateway = await self._pinged(of)
            return self._gateway

    async def _pinged(self, of: str) -> Gateway:
        for within in FIND_WITHIN:
            try:
                message = await self.nc.request(f"{self.prefix}.{of}.ping", PING, timeout=within)
            except asyncio.TimeoutError:
                continue
            address = json.loads(message.data).get("ok", {}).get("gateway")
            if address is None:
                # An older gateway knows no pings.
                return Gateway()
            gateway = Gateway(f"@{address}")
            watch = asyncio.ensure_future(self._watch(gateway, of))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
            return gateway
        return Gateway(kept_for=ANY_FOR)

    async def _watch(self, gateway: Gateway, of: str) -> None:
        """Pings a gateway while requests wait for it: one that is frozen keeps its subscriptions."""
        while self._gateway is gateway or gateway.waiting:
            await asyncio.sleep(PING_EVERY)
            if not gateway.waiting:
                continue
            asked_at = monotonic()
            try:
                await self.nc.request(f"{self.prefix}.{of}.ping{gateway.at}", PING, timeout=PONG_WITHIN)
            except Exception as error:
                # Otherwise this process was frozen, or its loop blocked.
                if monotonic() - asked_at < PONG_WITHIN + PING_EVERY:
                    log.warning("the gateway does not answer, and another one is asked: %s", error or "no answer")
                    gateway.lose()
                    return

    async def ask(self, subject: str, body: str, within: float = ANSWERED_WITHIN) -> dict[str, Any]:
        """Repeats a request until it is answered."""
        return await repeat(lambda: self.once(subject, body, within))


async def repeat(once: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats a request until it is answered, and says so in the log now and then."""
    pauses, told_at = Pauses(), -TOLD_EVERY
    while True:
        try:
            return await once()
        except Unanswered as error:
            if monotonic() - told_at > TOLD_EVERY:
                log.warning("a request is repeated: %s", error)
                told_at = monotonic()
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
