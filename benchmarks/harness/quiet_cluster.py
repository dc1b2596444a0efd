"""An API server where nothing happens: one node, and pods that are not opted in."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from simulator.certificates import SimulatedAuthority

_PODS = 30
_LOOPBACK = "127.0.0.1"
_VERSION = "1"


@asynccontextmanager
async def quiet_cluster(root: Path, node: str) -> AsyncIterator[Mapping[str, str]]:
    """Serve lists, and watches without events. Yields the variables with which an agent finds it.

    Args:
        root: A directory that does not exist yet; it becomes that of the agent's service account.
        node: The name of the only node.
    """
    authority = SimulatedAuthority(root)
    (root / "token").write_text("token", encoding="ascii")
    (root / "namespace").write_text("default", encoding="ascii")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.cert_file, authority.key_file)
    runner = web.AppRunner(_application(node), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, _LOOPBACK, 0, ssl_context=tls).start()
        yield {
            "KUBERNETES_SERVICE_HOST": _LOOPBACK,
            "KUBERNETES_SERVICE_PORT": str(runner.addresses[0][1]),
            "NODE_AGENT_ACCOUNT_DIR": str(root),
        }
    finally:
        await runner.cleanup()


def _application(node: str) -> web.Application:
    application = web.Application()
    application.router.add_get("/api/v1/nodes", _handler([_object(node)]))
    application.router.add_get("/api/v1/pods", _handler([_object(f"pod-{number}") for number in range(_PODS)]))
    return application


def _object(name: str) -> Mapping[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": _VERSION}}


def _handler(items: Sequence[Mapping[str, object]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": _VERSION}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    return answer
