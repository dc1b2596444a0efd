"""Delivers messages to receivers, which may be dead, slow or hostile. No text of an error contains a URL."""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

import aiohttp
from yarl import URL

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Backoff, Fault
from servicekit.reconcile import Wakeup
from supervisor.observability.notifications.config import BadTemplateError, NotificationConfig, NotificationTarget
from supervisor.observability.notifications.message import NotificationMessage, trial

MAX_RETRY_AFTER = 300.0
_MAX_URL_BYTES = 8192
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class DeliveryOutcome(StrEnum):
    """How the delivery of a message ended.

    Attributes:
        SENT: The receiver accepted it.
        FAILED: The receiver refused it for good, or it could not be rendered.
        DROPPED: Newer messages took its place, or it could not be sent for too long.
    """

    SENT = "sent"
    FAILED = "failed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one attempt: an outcome, or None to try again, in `after` seconds at the earliest."""

    outcome: DeliveryOutcome | None
    reason: str = ""
    after: float = 0.0


class UrlUnusableError(ValueError):
    """The file with the URL cannot be read, or contains none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """Posts with one session: redirects are not followed, answers are not read, and no connection is kept."""

    session: aiohttp.ClientSession
    timeout_seconds: float
    proxy: str

    @classmethod
    def open(cls, timeout_seconds: float, proxy: str) -> Self:
        """Opens a poster. The caller has to close its session."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=50),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Content-Type": "application/json", "User-Agent": "elastic-job-supervisor"},
        )
        return cls(session=session, timeout_seconds=timeout_seconds, proxy=proxy)

    async def post(self, url_file: Path, body: bytes) -> Attempt:
        """Makes one attempt; never raises for anything that a receiver or the network does."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                url = await asyncio.to_thread(_url, url_file)
                answer = await self.session.post(url, data=body, allow_redirects=False, proxy=self.proxy or None)
                try:
                    return judged(answer.status, answer.headers.get("Retry-After", ""))
                finally:
                    answer.close()
        except TimeoutError:
            return Attempt(None, f"no answer within {self.timeout_seconds:g} s")
        except UrlUnusableError as error:
            return Attempt(None, str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Attempt(None, _why(error))


def judged(status: int, retry_after: str) -> Attempt:
    """Decides from an answer whether the message was sent, was refused, or is tried again."""
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return Attempt(DeliveryOutcome.SENT)
    if status in _RETRIED:
        return Attempt(None, f"answered {status}", _seconds(retry_after))
    redirected = "; redirects are not followed" if 300 <= status < 400 else ""  # noqa: PLR2004 - the class of redirects
    return Attempt(DeliveryOutcome.FAILED, f"answered {status}{redirected}")


def _seconds(retry_after: str) -> float:
    """Returns the seconds that a receiver's Retry-After asks for, within a limit; 0 if it is missing or malformed."""
    try:
        if retry_after.isdigit():
            seconds = float(retry_after)
        else:
            at = parsedate_to_datetime(retry_after)
            seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


def _url(path: Path) -> URL:
    """Reads the URL. It reads the file each time, because a Secret may be rotated."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_URL_BYTES + 1).strip()
    except OSError as error:
        raise UrlUnusableError(f"the file with the URL cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UrlUnusableError("the file with the URL contains no text") from None
    try:
        url = URL(text)
        usable = url.scheme in ("http", "https") and bool(url.host) and len(text) <= _MAX_URL_BYTES
    except ValueError:
        usable = False
    if not usable:
        raise UrlUnusableError("the file with the URL contains no http or https URL")
    return url


def _why(error: Exception) -> str:
    """Describes the kind of an error in words, because its own text may contain the URL."""
    match error:
        case aiohttp.ClientProxyConnectionError():
            return "cannot connect to the proxy"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted"
        case aiohttp.ClientConnectorDNSError():
            return "its name cannot be resolved"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered {error.status}"
        case OSError() if isinstance(error.errno, int):
            return f"cannot connect: {os.strerror(error.errno)}"
        case _:
            return f"cannot be reached: {type(error).__name__}"


Outcomes = Counter[tuple[str, str]]
"""Counts messages by target and outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """The bounds of an outbox.

    Attributes:
        max_messages: Messages that wait for one target; beyond that the oldest is dropped.
        max_age_seconds: A message that could not be sent for this long is dropped: it would be news no more.
        first_pause: Bound of the first pause after a failed attempt, in seconds; it doubles.
        max_pause: The longest such pause.
    """

    max_messages: int = 100
    max_age_seconds: float = 900.0
    first_pause: float = 1.0
    max_pause: float = 60.0


class NotificationOutbox:
    """Sends the messages of one target in order. A failing target delays no other one.

    Args:
        target: The receiver.
        outcomes: Counts what became of each message.
        may_act: Whether this supervisor certainly leads; while it does not, nothing is sent.
        clock: For ages and pauses.
        limits: How long and how many messages wait.
        bulkhead: Keeps what a message raises with its target.

    Attributes:
        waiting: The messages that wait, without the one that is being sent, and since when.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - documented above
        self,
        target: NotificationTarget,
        outcomes: Outcomes,
        may_act: Callable[[], bool],
        clock: Clock,
        limits: OutboxLimits,
        bulkhead: Bulkhead,
    ) -> None:
        self.target = target.name
        self._bulkhead = bulkhead
        self._target = target
        self._outcomes = outcomes
        self._may_act = may_act
        self._clock = clock
        self._limits = limits
        self.waiting: deque[tuple[NotificationMessage, float]] = deque()
        self._wakeup = Wakeup()
        self._backoff = Backoff(limits.first_pause, limits.max_pause)
        self._fault = Fault(f"notifications to {target.name}", clock)
        for outcome in DeliveryOutcome:
            outcomes[target.name, outcome] += 0

    def put(self, message: NotificationMessage) -> None:
        """Adds a message; never blocks."""
        self.waiting.append((message, self._clock.monotonic()))
        if len(self.waiting) > self._limits.max_messages:
            self.waiting.popleft()
            self._outcomes[self.target, DeliveryOutcome.DROPPED] += 1
        self._wakeup.set()

    async def run(self, poster: Poster) -> None:
        """Sends for ever."""
        while True:
            if self.waiting:
                await self._send(*self.waiting.popleft(), poster)
            else:
                await self._wakeup.wait()

    async def _send(self, message: NotificationMessage, since: float, poster: Poster) -> None:
        """Tries until the message is sent, refused, or too old."""
        while self._clock.monotonic() - since <= self._limits.max_age_seconds:
            attempt = Attempt(None)
            if self._may_act():
                attempt = await attempted(self._target, message, poster, self._bulkhead)
                if attempt.outcome is DeliveryOutcome.SENT:
                    self._backoff.reset()
                    self._fault.recovered()
                else:
                    self._fault.failed(attempt.reason)
            if attempt.outcome is not None:
                self._outcomes[self.target, attempt.outcome] += 1
                return
            await asyncio.sleep(attempt.after + self._backoff.next())
        self._outcomes[self.target, DeliveryOutcome.DROPPED] += 1


async def attempted(
    target: NotificationTarget, message: NotificationMessage, poster: Poster, bulkhead: Bulkhead
) -> Attempt:
    """Makes one attempt to send a message; never raises."""
    with bulkhead.guard("notifications", target.name, retried=False):
        try:
            # In a thread: a template may take its time.
            body = await asyncio.to_thread(target.renderer.body, message)
            return await poster.post(Path(target.url_file), body)
        except BadTemplateError as error:
            return Attempt(DeliveryOutcome.FAILED, str(error))
    return Attempt(DeliveryOutcome.FAILED, "an internal error; see the log")


async def send_trial(config: NotificationConfig, timeout_seconds: float, proxy: str) -> Mapping[str, str]:
    """Sends a test message to each target once.

    Returns why it could not be sent, by target; empty for a target that accepted it.
    """
    clock = Clock()
    poster, message, bulkhead = Poster.open(timeout_seconds, proxy), trial(config.origin, clock.wall()), Bulkhead(clock)
    reasons = {}
    async with poster.session:
        for target in config.targets:
            attempt = await attempted(target, message, poster, bulkhead)
            reasons[target.name] = "" if attempt.outcome is DeliveryOutcome.SENT else attempt.reason
    return reasons
