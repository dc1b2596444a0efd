"""A metadata service on loopback whose answers a test chooses."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

TERMINATION = "/latest/meta-data/instance/spot/termination-time"
TOKEN_PUT = "/latest/api/token"
_TOKEN = "X-aliyun-ecs-metadata-token"


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    date: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


IDENTITY = {
    "/latest/meta-data/instance-id": Reply(body=b"i-1"),
    "/latest/meta-data/region-id": Reply(body=b"cn-beijing"),
    "/latest/meta-data/zone-id": Reply(body=b"cn-beijing-a"),
    "/latest/meta-data/instance/instance-type": Reply(body=b"ecs.gn6i"),
}


class FakeMetadata:
    """Answers by path; `hardened` wants tokens, of which only those in `tokens` are good."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: dict[str, Reply] = {**IDENTITY, TERMINATION: Reply(404)}
        self.hardened = False
        self.tokens: set[str] = set()
        self.token_reply: Reply | None = None
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []

    @property
    def asked(self) -> list[str]:
        return [f"{method} {path.rpartition('/')[2]}" for method, path, _ in self.requests]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, request.headers))
        return _response(self._reply(request))

    def _reply(self, request: web.Request) -> Reply:
        if "X-Forwarded-For" in request.headers:
            return Reply(403)
        if request.method == "PUT":
            return self._token(request)
        token = request.headers.get(_TOKEN)
        if token is not None and token not in self.tokens:
            return Reply(401)
        if token is None and self.hardened:
            return Reply(403)
        return self.replies.get(request.path, Reply(404))

    def _token(self, request: web.Request) -> Reply:
        if self.token_reply is not None:
            return self.token_reply
        if request.path != TOKEN_PUT or not 1 <= int(request.headers[f"{_TOKEN}-ttl-seconds"]) <= 21600:
            return Reply(400)
        token = f"token-{len(self.requests)}"
        self.tokens.add(token)
        return Reply(body=token.encode())


def _response(reply: Reply) -> web.Response:
    headers = dict(reply.headers)
    if reply.date is not None:
        headers["Date"] = reply.date
    return web.Response(status=reply.status, body=reply.body, headers=headers)


@asynccontextmanager
async def metadata() -> AsyncIterator[FakeMetadata]:
    fake = FakeMetadata()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()
