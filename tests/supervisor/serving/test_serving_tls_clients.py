"""The agent and the SDK as clients of a supervisor with TLS: whom they trust, and what they say where they do not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from kubeai.elastic import wire

from node_agent.channel import SupervisorEndpoint
from node_agent.node import ThisNode
from node_agent.outbox import NoticeOutbox
from node_agent.stream import SupervisorUplink
from servicekit.address import parse
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from simulator.certificates import SimulatedAuthority
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

FOREIGN = trustme.CA().cert_pem.bytes()
UNAUTHENTICATED = "refused with 401"
"""What a call without a token ends with. The number alone may also be a part of the port that an error names."""


@asynccontextmanager
async def agent(
    served: Served, directory: Path, trusted: Path | None, host: str = "localhost"
) -> AsyncIterator[SupervisorUplink]:
    token_file = directory / "agent.token"
    token_file.write_text(served.peers.tokens.agent("n1"), encoding="utf-8")
    address = parse(served.peers.grpc.replace("127.0.0.1", host))
    uplink = SupervisorUplink(
        endpoint=SupervisorEndpoint(address, token_file, trusted),
        node=ThisNode("n1", "uid-n1"),
        outbox=NoticeOutbox(5),
        clock=Clock(),
        heartbeat=5.0,  # A stream is given up after three of them without a word, and a handshake takes a while.
        version="0",
        bulkhead=Bulkhead(Clock()),
    )
    running = asyncio.create_task(uplink.run())
    try:
        yield uplink
    finally:
        running.cancel()
        await asyncio.wait([running])


async def sdk(served: Served, trusted: Path | None, host: str = "localhost", scheme: str = "https") -> str:
    """What the SDK says after a call: a refusal of the supervisor's means that TLS stood."""
    address = served.peers.http.replace("127.0.0.1", host).replace("https", scheme)
    endpoint = wire.CallAddress(address, "no token", trusted)
    try:
        await asyncio.to_thread(wire.post, endpoint, "/v1/processes/report", {})
    except (wire.CallRefused, wire.Unreachable) as error:
        return str(error)
    raise AssertionError("a call without a token was accepted")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_the_certificates_names_and_addresses_are_good(
    secured: Served, authority: SimulatedAuthority, tmp_path: Path, host: str
) -> None:
    assert UNAUTHENTICATED in await sdk(secured, authority.ca_file, host)
    async with agent(secured, tmp_path, authority.ca_file, host) as uplink:
        await until(lambda: uplink.welcomed, lambda: uplink.fault.reason)


@pytest.mark.parametrize(
    ("trusted", "sdk_says", "agent_says"),
    [
        (FOREIGN, "unable to get local issuer", "unable to get local issuer"),
        (b"", "contains no CA certificate", "contains no CA certificate"),
        (b"junk", "contains no CA certificate", "contains no CA certificate"),
        (None, "unable to get local issuer", "without TLS"),
    ],
    ids=["foreign", "empty", "junk", "none"],
)
async def test_who_trusts_the_wrong_ca_says_so_and_is_welcome_once_it_is_right(  # noqa: PLR0913, PLR0917 - a row of the table
    secured: Served,
    authority: SimulatedAuthority,
    tmp_path: Path,
    trusted: bytes | None,
    sdk_says: str,
    agent_says: str,
) -> None:
    """The file is read again at each attempt; old and new CA together are good too."""
    file = tmp_path / "trusted.crt"
    file.write_bytes(trusted or b"")
    given = None if trusted is None else file
    assert sdk_says in await sdk(secured, given)
    async with agent(secured, tmp_path, given) as uplink:
        await until(lambda: agent_says in (uplink.fault.reason or ""), lambda: uplink.fault.reason)
        assert not secured.store.snapshot().notices
        if given is not None:
            file.write_bytes(FOREIGN + authority.ca_pem)
            await until(lambda: uplink.welcomed, lambda: uplink.fault.reason)
            assert UNAUTHENTICATED in await sdk(secured, given)


async def test_a_certificate_of_another_name_is_refused(
    secured: Served, authority: SimulatedAuthority, tmp_path: Path
) -> None:
    """Our CA signs more than one server; no token is sent to the others."""
    authority.issue("other.example")

    async def refused() -> bool:
        said = await sdk(secured, authority.ca_file)
        assert UNAUTHENTICATED in said or "not valid for 'localhost'" in said
        return UNAUTHENTICATED not in said

    await until(refused, "the server shows the certificate of another name")
    async with agent(secured, tmp_path, authority.ca_file) as uplink:
        await until(
            lambda: "Hostname Verification Check failed" in (uplink.fault.reason or ""), lambda: uplink.fault.reason
        )
        authority.issue()
        await until(lambda: uplink.welcomed, lambda: uplink.fault.reason)


async def test_who_speaks_without_tls_is_told_what_may_be_wrong(secured: Served) -> None:
    assert "https:// instead of http://" in await sdk(secured, None, scheme="http")


async def test_who_speaks_tls_to_a_server_without_it_is_told_too(tmp_path: Path, authority: SimulatedAuthority) -> None:
    async with serving(tmp_path) as plain:
        endpoint = wire.CallAddress(plain.peers.http.replace("http:", "https:"), "t", authority.ca_file)
        with pytest.raises(wire.Unreachable, match="does not speak TLS"):
            await asyncio.to_thread(wire.post, endpoint, "/v1/processes/report", {})
