"""Follows an API server in a network namespace of its own, cuts the network, and prints the seconds until it notices.

Run as `unshare --user --map-root-user --net python -m tests.servicekit.kit_cut_off`.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import time

import uvloop
from aiohttp import web

from servicekit.kubernetes.access import Access
from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.kubernetes.server import ApiServer, Call

_SET_FLAGS = 0x8914
_UP = 0x1
_SILENT_SECONDS = 60.0


def loopback(flags: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14s", b"lo", flags, b""))


async def _watch(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def _nobody() -> dict[str, str]:
    return {}


async def main() -> None:
    loopback(_UP)
    application = web.Application()
    application.router.add_get("/watch", _watch)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server = ApiServer(Access(url=url, namespace="", tls=None, credentials=_nobody), 5.0)
    lines = server.lines(Call(method="GET", path="/watch"), _SILENT_SECONDS, lambda: loopback(0))
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
