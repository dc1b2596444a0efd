"""Serves the metadata of nodes for manual tests: `python -m simulator metadata --nodes node1,node2`.

Two loopback servers: one is the nodes' metadata service, the other takes commands:

    curl -X PUT    URL/nodes/node3                    add a node
    curl -X POST   URL/nodes/node3/notice?seconds=300 announce its reclaim in 300 s
    curl -X DELETE URL/nodes/node3/notice             withdraw the announcement
    curl -X DELETE URL/nodes/node3                    remove the node
    curl -X PUT    URL/fault/black-hole               inject a fault; any other name lists the faults
    curl -X DELETE URL/fault                          remove the fault
"""

import argparse
import asyncio
import ipaddress
import math
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiohttp import web

from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud
from simulator.cloud.faults import MetadataFault
from simulator.cloud.metadata import AnswerMode, MetadataServer, UnknownNode
from simulator.cloud.trace import Node

DEFAULT_LEAD_SECONDS = 300.0
MAX_LEAD_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class CloudAddress:
    """A loopback address, and a port or 0 for any."""

    host: str
    port: int


class CloudControl:
    """Takes commands over HTTP and applies them to a metadata server."""

    def __init__(self, metadata: MetadataServer) -> None:
        self._metadata = metadata

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/nodes", self._list)
        app.router.add_put("/nodes/{node}", self._add)
        app.router.add_delete("/nodes/{node}", self._remove)
        app.router.add_post("/nodes/{node}/notice", self._notice)
        app.router.add_delete("/nodes/{node}/notice", self._withdraw)
        app.router.add_put("/fault/{fault}", self._set_fault)
        app.router.add_delete("/fault", self._clear_fault)
        return app

    async def _set_fault(self, request: web.Request) -> web.Response:
        try:
            fault = MetadataFault(request.match_info["fault"])
        except ValueError as error:
            raise web.HTTPNotFound(text=f"{error}; the faults are {', '.join(MetadataFault)}\n") from error
        await self._metadata.set_fault(fault)
        return _text(f"metadata fault: {fault}")

    async def _clear_fault(self, _: web.Request) -> web.Response:
        await self._metadata.set_fault(None)
        return _text("no metadata fault")

    async def _list(self, _: web.Request) -> web.Response:
        return _text(*(f"{node} {self._metadata.url_of(node)}" for node in self._metadata.nodes()))

    async def _add(self, request: web.Request) -> web.Response:
        node = Node(request.match_info["node"])
        self._metadata.add(node)
        return _text(f"{node} {self._metadata.url_of(node)}")

    async def _remove(self, request: web.Request) -> web.Response:
        node = Node(request.match_info["node"])
        self._metadata.remove(node)
        return _text(f"{node} is removed")

    async def _notice(self, request: web.Request) -> web.Response:
        node = Node(request.match_info["node"])
        seconds = _seconds(request.query.get("seconds", ""))
        try:
            self._metadata.notice(node, time.time() + seconds)
        except UnknownNode as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error
        return _text(f"{node} will be gone in {seconds:g} s")

    async def _withdraw(self, request: web.Request) -> web.Response:
        node = Node(request.match_info["node"])
        try:
            self._metadata.withdraw(node)
        except UnknownNode as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error
        return _text(f"{node} has no announcement")


def _seconds(text: str) -> float:
    try:
        seconds = float(text or DEFAULT_LEAD_SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_LEAD_SECONDS:
        raise web.HTTPBadRequest(text=f"seconds must be a number from 0 to {MAX_LEAD_SECONDS:g}\n")
    return seconds


def _text(*lines: str) -> web.Response:
    return web.Response(text="".join(f"{line}\n" for line in lines))


def loopback(text: str) -> CloudAddress:
    """Parse HOST:PORT. Only loopback addresses are allowed, because the metadata are simulated.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    host, _, port = text.rpartition(":")
    try:
        if ipaddress.ip_address(host).is_loopback and 0 <= int(port) <= 65535:  # noqa: PLR2004  # The last port there is.
            return CloudAddress(host, int(port))
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not LOOPBACK-ADDRESS:PORT")


def names(text: str) -> list[Node]:
    """Parse a comma-separated list of names.

    Raises:
        argparse.ArgumentTypeError: A name is empty or cannot be part of a path.
    """
    nodes = [Node(name.strip()) for name in text.split(",")]
    if not all(nodes) or any("/" in node for node in nodes):
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE,NODE,…")
    return nodes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=names, required=True, metavar="NODE,…", help="the initial nodes")
    parser.add_argument("--listen", type=loopback, default="127.0.0.1:0", help="address of the metadata service")
    parser.add_argument("--control", type=loopback, default="127.0.0.1:0", help="address for commands")
    parser.add_argument(
        "--mode",
        type=AnswerMode,
        choices=list(AnswerMode),
        default=AnswerMode.PLAIN,
        help="whether the metadata service requires a token",
    )
    parser.add_argument(
        "--cloud",
        type=SimulatedCloud,
        choices=list(SimulatedCloud),
        default=SimulatedCloud.ALIYUN,
        help="the simulated cloud",
    )


async def serve(
    nodes: Sequence[Node], listen: CloudAddress, control: CloudAddress, mode: AnswerMode, cloud: SimulatedCloud
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        metadata = MetadataServer(mode, listen.host, listen.port, cloud=cloud)
        await metadata.start()
        stack.push_async_callback(metadata.stop)
        for node in nodes:
            metadata.add(node)
        runner = web.AppRunner(CloudControl(metadata).app(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, control.host, control.port).start()
        host, port = runner.addresses[0][:2]
        _explain(metadata, nodes, f"http://{host}:{port}", METADATA_URLS[cloud])
        await stop.wait()


def _explain(metadata: MetadataServer, nodes: Sequence[Node], control: str, setting: str) -> None:
    lines = [f"metadata of {node}: {setting}={metadata.url_of(node)}" for node in nodes]
    lines += [
        f"announce: curl -X POST '{control}/nodes/{nodes[0]}/notice?seconds=300'",
        f"withdraw: curl -X DELETE {control}/nodes/{nodes[0]}/notice",
    ]
    print("\n".join(lines), flush=True)  # noqa: T201 - the command's output
