"""The wave of notices of `scale` without a supervisor: each node asks its metadata and sends SIGTERM."""

import asyncio
import time
from collections.abc import Sequence

from benchmarks.clients import pollers
from benchmarks.clients.baseline import POLL_SECONDS
from benchmarks.harness.client import ClientProcess
from benchmarks.results import Row, figures
from benchmarks.summary import summarize
from simulator.cloud.metadata import MetadataServer
from simulator.cloud.trace import Node

_CLIENTS = 2
_LEAD_SECONDS = 3600.0

METHOD = f"""\
The *loops* are what a user would do without any messages: each node asks its own metadata, here a real HTTP server,
every {POLL_SECONDS:g} s, and sends SIGTERM to a real process, whose end is *received*. They reach the processes of
their own nodes only; the others of the job never hear of it. Nodes without a notice are left out. The supervisor's rows
begin when an agent has the notice; its agents ask once a second."""


async def row(nodes: int, over: float) -> Row:
    """Measure loops on so many nodes, which are all noticed within so many seconds."""
    metadata, names = MetadataServer(), [Node(f"node-{number}") for number in range(nodes)]
    await metadata.start()
    clients = [await ClientProcess.start("pollers", pollers.Ended) for _ in range(_CLIENTS)]
    try:
        for node in names:
            metadata.add(node)
        for number, client in enumerate(clients):
            await client.request(pollers.Watch([_url(metadata, node) for node in names[number::_CLIENTS]]))
        noticed = await _notice(metadata, names, over)
        ended = [await client.request(pollers.CollectPolls()) for client in clients]
    finally:
        for client in clients:
            await client.end()
        await metadata.stop()
    delays = [
        at - since
        for number, each in enumerate(ended)
        for since, at in zip(noticed[number::_CLIENTS], each.at, strict=True)
    ]
    return Row(
        case=f"loops of {POLL_SECONDS:g} s and SIGTERM: {nodes:,} notices in {over:g} s",
        figures=tuple(figures("published → received", summarize(delays))),
    )


def _url(metadata: MetadataServer, node: Node) -> str:
    return f"{metadata.url_of(node)}/latest/meta-data/instance/spot/termination-time"


async def _notice(metadata: MetadataServer, nodes: Sequence[Node], over: float) -> list[float]:
    """Notice the nodes evenly over so many seconds, and return when each was (CLOCK_MONOTONIC)."""
    began, noticed = time.monotonic(), list[float]()
    for number, node in enumerate(nodes):
        await asyncio.sleep(began + over * number / len(nodes) - time.monotonic())
        noticed.append(time.monotonic())
        metadata.notice(node, time.time() + _LEAD_SECONDS)
    return noticed
