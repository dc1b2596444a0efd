"""The wave of notices of `scale`, carried by message brokers to as many connections."""

import asyncio
import ssl
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.clients import subscribers
from benchmarks.clients.broker_dialect import DIALECTS
from benchmarks.clients.subscribers import BrokerMessage, connect
from benchmarks.harness.brokers import PRODUCTS, Broker, broker, program
from benchmarks.harness.client import ClientProcess
from benchmarks.harness.fleet import FleetSize
from benchmarks.results import Figure, Row, Unit, figures
from benchmarks.summary import summarize

_CLIENTS = 2
_TEXT = "x" * 400
"""As long as a line of the supervisor."""
_AWAY_SECONDS = 1.0
_SETTLE_SECONDS = 1.0

METHOD = """\
*Redis* and *NATS* are Debian's brokers, with TLS, without tokens. Each node's pod subscribes to the channel of its job,
and each notice is published there once, to as many connections as the shared streams above. They decide nothing, know
no group, no minimum and no rank 0, and store nothing: *missed* are the messages that did not reach a twentieth of the
subscribers who were away for a second in the middle of the wave, by subscriber. A process that calls the supervisor
again is told what holds, and none is missed."""


async def rows(root: Path, size: FleetSize, notices: int, over: float) -> Sequence[Row]:
    """Measure each broker that this machine has, with a subscriber for each node; others are named on stderr."""
    found: list[Row] = []
    for name, product in PRODUCTS.items():
        if program(name) is None:
            sys.stderr.write(f"{product.title} is left out: this machine has no {product.program}\n")
            continue
        async with broker(name, root / name) as running:
            found.append(await _measure(running, size, notices, over))
    return found


async def _measure(running: Broker, size: FleetSize, notices: int, over: float) -> Row:
    channels = [f"job-{number % size.jobs}" for number in range(size.nodes)]
    clients = [await ClientProcess.start("subscribers", subscribers.Received) for _ in range(_CLIENTS)]
    try:
        for number, client in enumerate(clients):
            await client.request(
                subscribers.Subscribe(running.name, running.port, running.ca.decode(), channels[number::_CLIENTS])
            )
        before, began = running.usage(), time.monotonic()
        away = size.nodes // 20
        noticed = [channels[number] for number in range(notices)]
        clients[0].send(subscribers.CutSubscribers(away, over / 2, _AWAY_SECONDS))
        await _publish(running, noticed, over)
        await clients[0].receive()
        passed = time.monotonic() - began
        await asyncio.sleep(_SETTLE_SECONDS)
        after = running.usage()
        received = [await client.request(subscribers.CollectMessages()) for client in clients]
    finally:
        for client in clients:
            await client.end()
    published, delays = Counter(noticed), [delay for each in received for delay in each.delays]
    missed = sum(published[channel] for channel in channels) - len(delays)
    return Row(
        case=f"{PRODUCTS[running.name].title}, {size.nodes:,} subscribers: {notices:,} notices in {over:g} s",
        figures=(
            Figure(label="server CPU", value=(after.cpu_seconds - before.cpu_seconds) / passed, unit=Unit.CORES),
            Figure(label="server RSS", value=after.resident_bytes, unit=Unit.BYTES),
            *figures("published → received", summarize(delays)),
            Figure(label="missed", value=missed / away, unit=Unit.COUNT),
        ),
    )


async def _publish(running: Broker, channels: Sequence[str], over: float) -> None:
    """Publish a message on each of these channels, evenly over so many seconds."""
    dialect = DIALECTS[running.name]
    trusted = ssl.create_default_context(cadata=running.ca.decode())
    reader, writer = await connect(dialect, running.port, trusted)
    answers = asyncio.create_task(_ignore(reader))
    began = time.monotonic()
    for number, channel in enumerate(channels):
        await asyncio.sleep(began + over * number / len(channels) - time.monotonic())
        message = msgspec.json.encode(BrokerMessage(time.monotonic(), _TEXT))
        writer.write(dialect.publish(channel, message))
        await writer.drain()
    await asyncio.sleep(_SETTLE_SECONDS)
    writer.transport.abort()
    await asyncio.gather(answers, return_exceptions=True)


async def _ignore(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass
