"""An API server on loopback that answers every request with an empty object, over TLS."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trustme
from aiohttp import web

from servicekit.kubernetes.server import Call

VERSION = Call(method="GET", path="/version")


@dataclass(frozen=True, slots=True)
class TlsApiServer:
    """What it was shown: the Authorization header of each request, and the name in the client's certificate."""

    port: int
    shown: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its pods."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}


@asynccontextmanager
async def api_server(
    ca: trustme.CA, name: str = "127.0.0.1", clients: trustme.CA | None = None
) -> AsyncIterator[TlsApiServer]:
    """Serves with a certificate for `name`; requires client certificates of the CA `clients` if it is given."""

    async def handle(request: web.Request) -> web.Response:
        serving.shown.append(request.headers.get("Authorization", ""))
        certificate = request.get_extra_info("peercert") or {}
        serving.names.extend(value for [(_, value)] in certificate.get("subject", ()))
        return web.json_response({})

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    application = web.Application()
    application.router.add_get("/version", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    serving = TlsApiServer(runner.addresses[0][1])
    try:
        yield serving
    finally:
        await runner.cleanup()
