"""Running a command in a container, by way of the API server and the node's kubelet."""

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
"""Both say how a command ended; API servers before 1.30 know the second alone."""

_MAX_OUTPUT = 64 * 1024
"""Bytes that are kept of what a command says: what ours say is a line."""


class _Channel(IntEnum):
    """The first byte of each message."""

    OUTPUT = 1
    ERRORS = 2
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
    """How a command ended, and what it said on both of its outputs."""

    code: int
    said: str


async def execute(server: ApiServer, pod: ObjectKey, container: str, command: Sequence[str]) -> ExecResult:
    """Runs a command in a container that runs, and waits for its end, as long as one request may take.

    The pod is found by its name: whoever means one pod and no later bearer of the name has the command check that.

    Raises:
        NotFoundError: There is no such pod.
        ApiUnavailableError: It could not be run, or is not known to have ended; it may run nevertheless.
        RefusedError: It may not be run.
    """
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/exec"
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in command)]
    try:
        async with asyncio.timeout(server.timeout_seconds), server.channel(path, query, _PROTOCOLS) as channel:
            return await _to_its_end(channel)
    except TimeoutError as error:
        raise ApiUnavailableError(f"{pod.name} has not run it within {server.timeout_seconds:g} s") from error


async def _to_its_end(channel: aiohttp.ClientWebSocketResponse) -> ExecResult:
    said = bytearray()
    async for message in channel:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        number, data = message.data[0], message.data[1:]
        if number == _Channel.STATUS:
            return ExecResult(_code(data), bytes(said[:_MAX_OUTPUT]).decode(errors="replace"))
        if number in (_Channel.OUTPUT, _Channel.ERRORS) and len(said) < _MAX_OUTPUT:
            said += data
    raise ApiUnavailableError("the connection ended before the command")


def _code(data: bytes) -> int:
    try:
        status = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError as error:
        raise ApiUnavailableError(f"how the command ended does not decode: {error}") from error
    if status.status == "Success":
        return 0
    codes = [cause.message for cause in status.details.causes if cause.reason == "ExitCode"]
    if not codes or not codes[0].isdecimal():
        raise ApiUnavailableError(f"it was not run: {status.message}")
    return int(codes[0])
