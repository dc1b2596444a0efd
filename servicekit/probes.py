"""The HTTP server for liveness and readiness probes: `/livez` and `/readyz`."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from servicekit.address import Address
from servicekit.health import Health
from servicekit.server_name import hide_versions


class Probes:
    """Answers both probes with 200 or 503, and the detail as JSON.

    Args:
        live: Called for every `/livez`. An unhealthy answer asks for a restart, so it must not depend on anything
            outside the process.
        ready: Called for every `/readyz`.
        address: Port 0 picks a free port, which `start` returns.
    """

    def __init__(
        self,
        live: Callable[[], Health],
        ready: Callable[[], Health],
        address: Address = Address("127.0.0.1", 0),  # noqa: B008 - frozen
    ) -> None:
        self._address = address
        app = web.Application()
        app.router.add_get("/livez", _handler(live))
        app.router.add_get("/readyz", _handler(ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> Address:
        """Starts to listen and returns the address.

        Raises:
            OSError: The address is not available.
        """
        hide_versions()
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        host, port = self._runner.addresses[0][:2]
        return Address(host, port)

    async def stop(self) -> None:
        """Stops listening and closes open connections."""
        await self._runner.cleanup()


def _handler(probe: Callable[[], Health]) -> Callable[[web.Request], Any]:
    async def answer(_request: web.Request) -> web.Response:
        health = probe()
        body = msgspec.json.encode({"ok": health.ok, "detail": health.detail})
        return web.Response(body=body, status=200 if health.ok else 503, content_type="application/json")

    return answer
