"""Forwards the streams of node agents message by message, see `chaos_wire`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Self

import grpc

from node_agent.channel import OPTIONS
from servicekit.address import Address
from tests.chaos.chaos_wire import FAULTY_CALLS, Background, Lane, cut_and_deliver_late, inject_into_stream

_CONNECT = "/reclaim.v1.ReclaimService/Connect"
_LAST_SECONDS = 1.0
"""How long a supervisor has to end a stream whose client is gone."""
_ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)


class _GrpcStream:
    """One stream of an agent, and the one to the supervisor that carries on with it."""

    def __init__(self, metadata: Any) -> None:
        self.up = Lane()
        self.down = Lane()
        self.status = (grpc.StatusCode.OK, "")
        self._metadata = metadata
        self._cut = asyncio.get_running_loop().create_future()

    def cut(self) -> None:
        if not self._cut.done():
            self._cut.set_result(None)

    async def serve(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """The client's side."""
        reading = asyncio.create_task(self._read(messages))
        try:
            await self._write(context)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self.up.put(None)
        code, details = (grpc.StatusCode.UNAVAILABLE, "the connection broke") if self._cut.done() else self.status
        if code is not grpc.StatusCode.OK:
            await context.abort(code, details)

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        async for message in messages:
            self.up.put(message)
        self.up.put(None)

    async def _write(self, context: Any) -> None:
        """Writes until the supervisor's stream ends or this one is cut.

        A write that has begun is finished: gRPC sends no status after a first write that was cancelled, and the client
        would hold an open stream on which nobody speaks.
        """
        while (message := await self._taken()) is not None:
            await context.write(message)

    async def _taken(self) -> bytes | None:
        """Returns the next message to the client; None at the end, and once the stream is cut."""
        taking = asyncio.create_task(self.down.take())
        try:
            await asyncio.wait((taking, self._cut), return_when=asyncio.FIRST_COMPLETED)
            return None if self._cut.done() else taking.result()
        finally:
            taking.cancel()

    async def carry_on(self, target: str, credentials: grpc.ChannelCredentials) -> None:
        """The supervisor's side, which may outlive the client's."""
        async with grpc.aio.secure_channel(target, credentials, options=OPTIONS) as channel:
            opened: Any = channel.stream_stream(_CONNECT)  # type: ignore[call-arg]  # The stubs require all arguments.
            call = opened(metadata=self._metadata)
            sending = asyncio.create_task(self._send(call))
            receiving = asyncio.create_task(self._receive(call))
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait((receiving,), timeout=_LAST_SECONDS)
            finally:
                for task in (sending, receiving):
                    task.cancel()
                await asyncio.gather(sending, receiving, return_exceptions=True)
                call.cancel()
                self.down.put(None)

    async def _send(self, call: Any) -> None:
        with suppress(*_ENDED):
            while (message := await self.up.take()) is not None:
                await call.write(message)
            await call.done_writing()

    async def _receive(self, call: Any) -> None:
        try:
            while isinstance(message := await call.read(), bytes):
                self.down.put(message)
            self.status = (await call.code(), await call.details() or "")
        except grpc.aio.AioRpcError as error:
            self.status = (error.code(), error.details() or "")


class AgentWire(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # The stubs' parameters do not exist.
    """A server without TLS in front of a supervisor with TLS.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, target: Address, ca: Path) -> None:
        self._target = str(target)
        self._credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        self._streams: list[_GrpcStream] = []
        self._refuses_until = 0.0
        self._random: Random | None = None
        self._background = Background()
        self._handler = grpc.stream_stream_rpc_method_handler(self._connect)
        self.address = Address("127.0.0.1", 0)

    @classmethod
    @asynccontextmanager
    async def to(cls, target: Address, ca: Path) -> AsyncIterator[Self]:
        """A wire to the supervisor that serves gRPC there."""
        middle = cls(target, ca)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((middle,))
        middle.address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        try:
            yield middle
        finally:
            await server.stop(None)
            await middle._background.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handler if handler_call_details.method == _CONNECT else None

    def inject(self, random: Random) -> None:
        if self._streams:
            inject_into_stream(random.choice(self._streams), random, self._background)

    def begin(self, random: Random) -> None:
        self._random = random

    def heal(self) -> None:
        self._random = None
        self._refuses_until = 0.0
        for stream in self._streams:
            stream.up.heal()
            stream.down.heal()

    def refuse(self, seconds: float) -> None:
        self._refuses_until = time.monotonic() + seconds
        for stream in self._streams:
            stream.cut()

    async def _connect(self, messages: AsyncIterator[bytes], context: Any) -> None:
        if time.monotonic() < self._refuses_until:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no connection for now")
        metadata = tuple(pair for pair in context.invocation_metadata() if pair[0] == "authorization")
        stream = _GrpcStream(metadata)
        self._streams.append(stream)
        if self._random is not None and self._random.random() < FAULTY_CALLS:
            cut_and_deliver_late(stream, self._random, self._background)
        self._background.start(self._carry_on(stream))
        await stream.serve(messages, context)

    async def _carry_on(self, stream: _GrpcStream) -> None:
        try:
            await stream.carry_on(self._target, self._credentials)
        finally:
            self._streams.remove(stream)
