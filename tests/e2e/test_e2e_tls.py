"""A whole run with TLS, whose certificate is exchanged in the middle of it."""

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from servicekit.address import Address, parse
from simulator.cloud.schedule import KillNode
from simulator.harness import ReplayWorld, world
from simulator.services import ServedJobPlan
from tests.testkit.waiting import until
from tests.testkit.worlds import LEAD, group, node


async def test_training_goes_on_while_the_certificate_is_exchanged(tmp_path: Path) -> None:
    """A new leaf, then a bad pair: no stream ends, new connections verify the new leaf, and a reclaim finds its way."""
    async with world(tmp_path, ["node1", "node2", "node3"], tls=True) as one:
        assert one.supervisor.endpoints.http.startswith("https://")
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=160, step_seconds=0.05))
        await one.until_training(job, workers=3)
        assert one.authority is not None
        new = one.authority.issue()
        await _served(one, new)
        one.authority.spoil()
        await _said(one, "dependency.failing")
        await _served(one, new)
        assert "disconnected" not in _log(one)
        await one.play([*group("g", 3), KillNode(LEAD, node(3))])
        assert await job.wait(90) == 0
        verdict = one.verdict(job)
        assert verdict.ok, verdict.failures
        assert verdict.figures.suspensions == 0


def _log(one: ReplayWorld) -> str:
    return one.paths.log("supervisor").read_text(encoding="utf-8")


async def _said(one: ReplayWorld, event: str) -> None:
    await until(lambda: event in _log(one), f"{event} is logged")


async def _served(one: ReplayWorld, leaf: bytes) -> None:
    url = urlsplit(one.supervisor.endpoints.http)
    for address in (parse(one.supervisor.endpoints.grpc), Address(url.hostname or "", url.port or 0)):

        async def new(address: Address = address) -> bool:
            return await _shown(one, address) == leaf

        await until(new, f"{address} serves the new certificate")


async def _shown(one: ReplayWorld, address: Address) -> bytes:
    assert one.authority is not None
    context = ssl.create_default_context(cafile=str(one.authority.ca_file))
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname="localhost")
    try:
        return ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(binary_form=True)).encode()
    finally:
        writer.transport.abort()
