"""Follows an API server in a network namespace of its own, cuts the network, and prints the seconds until it notices.

Run behind `OWN_NETWORK`.
"""

import asyncio
import sys
import time

import uvloop
from aiohttp import web

from servicekit.kubernetes.access import Access
from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.kubernetes.server import ApiServer, Call
from tests.testkit.own_network import switch_loopback

_SILENT_SECONDS = 60.0


async def _watch(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def _nobody() -> dict[str, str]:
    return {}


async def main() -> None:
    switch_loopback(is_up=True)
    application = web.Application()
    application.router.add_get("/watch", _watch)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server = ApiServer(Access(url=url, namespace="", tls=None, credentials=_nobody), 5.0)
    lines = server.lines(Call(method="GET", path="/watch"), _SILENT_SECONDS, lambda: switch_loopback(is_up=False))
    begun = time.monotonic()
    try:
        await anext(lines)
    except ApiUnavailableError as error:
        sys.stdout.write(f"{time.monotonic() - begun:.1f} {error}\n")
    await server.close()
    await runner.cleanup()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
