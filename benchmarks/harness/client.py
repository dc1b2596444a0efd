"""A client process, as the harness uses it."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Generic, Self, TypeVar

import msgspec

_MAX_LINE_BYTES = 256 * 1024 * 1024
_END_SECONDS = 10.0

A = TypeVar("A", bound=msgspec.Struct)


class ClientEndedError(RuntimeError):
    """The client exited instead of answering. Its traceback is on stderr."""


class ClientProcess(Generic[A]):
    """A running module of `benchmarks.clients` with answers of type `A`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, answers: type[A]) -> None:
        self.name = name
        self._process = process
        self._decoder = msgspec.json.Decoder(answers)

    @classmethod
    async def start(
        cls,
        name: str,
        answers: type[A],
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        quiet: bool = False,
    ) -> Self:
        """Start `benchmarks.clients.<name>` with extra variables and arguments. A `quiet` client has no stderr."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"benchmarks.clients.{name}", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL if quiet else None,
            env={**os.environ, **(env or {})},
            limit=_MAX_LINE_BYTES,
        )
        return cls(name, process, answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def request(self, command: msgspec.Struct) -> A:
        """Send a command and wait for the answer.

        Raises:
            ClientEndedError: It exited instead.
        """
        self.send(command)
        return await self.receive()

    def send(self, command: msgspec.Struct) -> None:
        """Send a command without waiting for the answer."""
        if self._process.stdin is None:
            raise AssertionError("clients are started with a pipe")
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")

    async def receive(self) -> A:
        """Return the next answer.

        Raises:
            ClientEndedError: It exited instead.
        """
        if self._process.stdout is None:
            raise AssertionError("clients are started with a pipe")
        line = await self._process.stdout.readline()
        if not line:
            raise ClientEndedError(f"{self.name} has ended with {await self._process.wait()}")
        return self._decoder.decode(line)

    async def end(self) -> None:
        """Close its stdin, which ends it, and kill it if it does not exit."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
