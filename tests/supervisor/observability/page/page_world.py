"""A supervisor with a status page, and clients that open the page without a browser."""

import html
import json
import re
from dataclasses import dataclass
from typing import Any

import aiohttp

from supervisor.identity.tokens import Viewer
from supervisor.observability.page.sessions import PageSession
from tests.testkit.serving import Served, ServedPeers
from tests.testkit.waiting import PATIENCE

VIEWING = PageSession(who=Viewer(), until=None, browser=False)
NODES = ["n1", "n2", "n3"]


@dataclass(frozen=True, slots=True)
class PageAnswer:
    status: int
    headers: dict[str, str]
    text: str
    cookie: str | None = None

    @property
    def seen(self) -> str:
        """The text that a person reads."""
        return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", self.text).split()))


async def get(peers: ServedPeers, path: str = "/", token: str | None = None, cookie: str | None = None) -> PageAnswer:
    return await _answer(peers, "GET", path, token, cookie)


async def sign_in(peers: ServedPeers, token: str, **headers: str) -> PageAnswer:
    return await _answer(peers, "POST", "/status/login", data={"token": token}, headers=headers)


async def post(peers: ServedPeers, path: str, **given: Any) -> PageAnswer:
    return await _answer(peers, "POST", path, **given)


async def _answer(
    peers: ServedPeers, method: str, path: str, token: str | None = None, cookie: str | None = None, **given: Any
) -> PageAnswer:
    headers = {**given.pop("headers", {}), "Connection": "close"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if cookie is not None:
        headers["Cookie"] = f"job_supervisor_viewer={cookie}"
    async with peers.session.request(
        method,
        peers.http + path,
        headers=headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(PATIENCE),
        **given,
    ) as answer:
        morsel = answer.cookies.get("job_supervisor_viewer")
        text = await answer.text()
        peers.session.cookie_jar.clear()
        return PageAnswer(answer.status, dict(answer.headers), text, None if morsel is None else morsel.OutputString())


async def viewing(served: Served) -> PageAnswer:
    return await get(served.peers, token=served.peers.tokens.viewer())


@dataclass(frozen=True, slots=True)
class Stream:
    response: aiohttp.ClientResponse

    async def line(self) -> dict[str, Any]:
        data = await self.response.content.readuntil(b"\n") if not self.response.content.at_eof() else b""
        value: dict[str, Any] = json.loads(data) if data else {}
        return value

    async def showing(self, text: str) -> str:
        """The next view with that text in it; lines before it, also those of a view that failed, are passed over."""
        while line := await self.line():
            if text in line.get("html", ""):
                return str(line["html"])
        raise AssertionError(f"the stream ended before it showed {text!r}")


async def stream(peers: ServedPeers, token: str) -> Stream:
    return Stream(await peers.opened("/status/stream", token))
