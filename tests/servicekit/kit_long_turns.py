"""A program that prints how many turns its loop takes for a burst of gRPC messages while every turn is long.

With `keep-up` as its argument it starts gRPC's events as the product does, with anything else as gRPC itself does.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import uvloop

from servicekit import process

_STREAMS = 200
"""Four events each: more than twice what gRPC's socket holds."""
_TURN_SECONDS = 0.01


class _Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg] # The stubs' parameters do not exist.
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ARG002 - it has one call only
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)


async def _main() -> int:
    if sys.argv[1] == "keep-up":
        process.init_grpc()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        connect: Any = channel.stream_stream
        streams = [connect("/echo/Echo")() for _ in range(_STREAMS)]
        for stream in streams:
            await _asked(stream)
        turns = await _turns_of(asyncio.gather(*(_asked(stream) for stream in streams)))
        for stream in streams:
            await stream.done_writing()
    await server.stop(None)
    return turns


async def _asked(stream: Any) -> None:
    await stream.write(b"?")
    await stream.read()


async def _turns_of(work: asyncio.Future[Any]) -> int:
    turns = 0
    while not work.done():
        time.sleep(_TURN_SECONDS)  # noqa: ASYNC251 - it is the loop that is held up
        turns += 1
        await asyncio.sleep(0)
    await work
    return turns


if __name__ == "__main__":
    print(uvloop.run(_main()))  # noqa: T201 - its answer
