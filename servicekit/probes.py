"""The probes server: `/livez` and `/readyz` for whoever supervises this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from servicekit.address import Address
from servicekit.server_name import hide_versions


@dataclass(frozen=True, slots=True)
class Health:
    """One answer to one probe. The detail is for people; it must encode as JSON and name no job."""

    ok: bool
    detail: Mapping[str, Any] = field(default_factory=dict)


class Probes:
    """A small HTTP server with the two probes: 200 where healthy, 503 where not, and the detail as JSON.

    Args:
        live: Asked at every `/livez`: False asks for a restart, so it must not depend on anything outside the process.
        ready: Asked at every `/readyz`.
        address: Where to listen; port 0 takes a free one, which `start` returns.
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
        """Listen, and return the address in use.

        Raises:
            OSError: The address cannot be had.
        """
        hide_versions()
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        host, port = self._runner.addresses[0][:2]
        return Address(host, port)

    async def stop(self) -> None:
        """Stop listening; open connections are closed."""
        await self._runner.cleanup()


def _handler(probe: Callable[[], Health]) -> Callable[[web.Request], Any]:
    async def answer(_request: web.Request) -> web.Response:
        health = probe()
        body = msgspec.json.encode({"ok": health.ok, "detail": health.detail})
        return web.Response(body=body, status=200 if health.ok else 503, content_type="application/json")

    return answer
