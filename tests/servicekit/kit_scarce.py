"""A program that listens and runs out of descriptors: `python kit_scarce.py`.

It prints its port. Each line that it reads lets it go on: one thread takes all descriptors until a line comes. Then it
prints which share of a core it uses while connections wait, and with the next line it frees the descriptors.
"""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from pathlib import Path

import uvloop

from servicekit.address import Address
from servicekit.listener import Listener

SPARE = 8
WATCHED_SECONDS = 0.5


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"hello")  # type: ignore[attr-defined]


async def _main() -> None:
    loop = asyncio.get_running_loop()
    listener = Listener(Greeting, None)
    await listener.listen(Address("127.0.0.1", 0), backlog=100)
    taken, enough = list[int](), threading.Event()

    def take() -> None:
        """Takes also what another thread gives up for a moment."""
        while not enough.is_set():
            with contextlib.suppress(OSError):
                taken.append(os.open("/dev/null", os.O_RDONLY))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_highest() + SPARE, limits[1]))
    thief = threading.Thread(target=take)
    thief.start()
    _say(listener.sockets[0].getsockname()[1])
    await loop.run_in_executor(None, sys.stdin.readline)
    enough.set()
    thief.join()
    before, began = time.process_time(), time.monotonic()
    await asyncio.sleep(WATCHED_SECONDS)
    _say((time.process_time() - before) / (time.monotonic() - began))
    await loop.run_in_executor(None, sys.stdin.readline)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for descriptor in taken:
        os.close(descriptor)
    await loop.run_in_executor(None, sys.stdin.readline)
    listener.close()


def _highest() -> int:
    return max(int(each.name) for each in Path("/proc/self/fd").iterdir())


def _say(what: float) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_main())
