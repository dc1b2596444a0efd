"""Runs a command in a container, through the API server and the node's kubelet."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import aiohttp
import msgspec

from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Both report how a command ended; API servers before 1.30 know only the second."""

_MAX_OUTPUT = 64 * 1024
"""Bytes of output that are kept; our commands write one line."""


class _Channel(IntEnum):
    """The first byte of each message."""

    STDOUT = 1
    STDERR = 2
    STATUS = 3


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: list[_Cause] = []


class _Status(msgspec.Struct, frozen=True):
    status: str
    message: str = ""
    details: _Details = _Details()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended, and what it wrote to stdout and stderr."""

    code: int
    output: str


async def execute(
    server: ApiServer, pod: ObjectKey, container: str, command: Sequence[str], more_seconds: float = 0.0
) -> ExecResult:
    """Runs a command in a running container, and waits for its end within the time limit of one request.

    A command that takes its time may take `more_seconds` beyond that limit. The pod is found by its name. A caller that
    means one pod, and not a later one of the name, lets the command check.

    Raises:
        NotFoundError: There is no such pod.
        ApiUnavailableError: The command could not be run, or its end is unknown; it may run nevertheless.
        RefusedError: The command may not be run.
    """
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/exec"
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in command)]
    seconds = server.timeout_seconds + more_seconds
    try:
        async with asyncio.timeout(seconds), server.channel(path, query, _PROTOCOLS) as channel:
            return await _result(channel)
    except TimeoutError as error:
        raise ApiUnavailableError(f"{pod.name} has not run the command within {seconds:g} s") from error


async def _result(channel: aiohttp.ClientWebSocketResponse) -> ExecResult:
    output = bytearray()
    async for message in channel:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        number, data = message.data[0], message.data[1:]
        if number == _Channel.STATUS:
            return ExecResult(_code(data), bytes(output[:_MAX_OUTPUT]).decode(errors="replace"))
        if number in (_Channel.STDOUT, _Channel.STDERR) and len(output) < _MAX_OUTPUT:
            output += data
    raise ApiUnavailableError("the connection ended before the command")


def _code(data: bytes) -> int:
    try:
        status = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError as error:
        raise ApiUnavailableError(f"the status of the command does not decode: {error}") from error
    if status.status == "Success":
        return 0
    codes = [cause.message for cause in status.details.causes if cause.reason == "ExitCode"]
    if not codes or not codes[0].isdecimal():
        raise ApiUnavailableError(f"the command was not run: {status.message}")
    return int(codes[0])
