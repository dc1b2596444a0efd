"""Posts one message to one receiver, which may be dead, slow or hostile. No text of an error contains the URL."""

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

import aiohttp
from yarl import URL

MAX_RETRY_AFTER = 300.0
_MAX_URL_BYTES = 8192
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class Outcome(StrEnum):
    """The end of a message.

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

    outcome: Outcome | None
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
        """A poster; its session has to be closed."""
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
                return await self._post(url, body)
        except TimeoutError:
            return Attempt(None, f"no answer within {self.timeout_seconds:g} s")
        except UrlUnusableError as error:
            return Attempt(None, str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Attempt(None, _why(error))

    async def _post(self, url: URL, body: bytes) -> Attempt:
        response = await self.session.post(url, data=body, allow_redirects=False, proxy=self.proxy or None)
        try:
            return judged(response.status, response.headers.get("Retry-After", ""))
        finally:
            response.close()


def judged(status: int, retry_after: str) -> Attempt:
    """What an answer means."""
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return Attempt(Outcome.SENT)
    if status in _RETRIED:
        return Attempt(None, f"answered {status}", _seconds(retry_after))
    redirected = "; redirects are not followed" if 300 <= status < 400 else ""  # noqa: PLR2004 - the class of redirects
    return Attempt(Outcome.FAILED, f"answered {status}{redirected}")


def _seconds(retry_after: str) -> float:
    """The pause that a receiver asks for, within a limit; 0 if it asks for none that can be understood."""
    try:
        seconds = float(retry_after) if retry_after.isdigit() else _until(retry_after)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


def _until(date: str) -> float:
    at = parsedate_to_datetime(date)
    return (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()


def _url(path: Path) -> URL:
    """Read each time, as a Secret may be rotated."""
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
    """The kind of an error in words: its own text may contain the URL."""
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
