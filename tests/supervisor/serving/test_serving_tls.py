"""TLS on both wires: what is verified, what is refused, and what an exchange of the certificate does to streams."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import trustme
from structlog.testing import capture_logs

from servicekit.address import Address, parse
from simulator.certificates import SimulatedAuthority
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import PREFIX
from tests.testkit.serving import Served, ServedPeers, serving, tls_settings
from tests.testkit.waiting import until


def ports(served: Served) -> tuple[Address, Address]:
    return parse(served.peers.grpc), parse(served.peers.http.removeprefix("https://"))


async def leaf(address: Address, ca: bytes, name: str | None = "localhost") -> bytes:
    """The certificate that a new connection verifies, as PEM.

    Raises:
        ssl.SSLError: It is not accepted.
    """
    context = ssl.create_default_context(cadata=ca.decode())
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.check_hostname = name is not None
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name or "")
    try:
        return ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(binary_form=True)).encode()
    finally:
        writer.transport.abort()


async def serves(served: Served, ca: bytes, expected: bytes) -> None:
    for address in ports(served):

        async def exchanged(address: Address = address) -> bool:
            return await leaf(address, ca) == expected

        await until(exchanged, f"{address} serves the new certificate")


async def test_both_wires_speak_tls_and_the_endpoints_say_so(tmp_path: Path, secured: Served) -> None:
    said = json.loads((tmp_path / "secured" / ENDPOINTS_FILE).read_bytes())
    assert said["http"].startswith("https://127.0.0.1:")
    await secured.peers.agents(["n1", "n2"])
    _, order = await secured.peers.running("job", ["n1", "n2"])
    process = await secured.peers.process(order["token"], "n1", 0)
    assert (await process.lines.next())["directive"] == "RUN"


async def test_nothing_older_than_tls_1_2_is_spoken(secured: Served, authority: SimulatedAuthority) -> None:
    context = ssl.create_default_context(cadata=authority.ca_pem.decode())
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    for address in ports(secured):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname="localhost")


async def test_a_new_certificate_is_served_and_open_streams_go_on(
    secured: Served, authority: SimulatedAuthority
) -> None:
    """Twice, and the second time with another type of key; streams opened before still carry what comes after."""
    agents = await secured.peers.agents(["n1", "n2", "n3"])
    launcher, order = await secured.peers.running("job", ["n1", "n2", "n3"], min_workers=1)
    process = await secured.peers.process(order["token"], "n1", 0)
    await serves(secured, authority.ca_pem, authority.issue())
    other = authority.ca.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
    authority.place(other.cert_chain_pems[0].bytes(), other.private_key_pem.bytes())
    await serves(secured, authority.ca_pem, other.cert_chain_pems[0].bytes())
    await agents["n3"].notices("n3")
    await launcher.lines.matching(exclusions=["n3"])
    assert (await process.lines.matching(type="directive"))["directive"] == "RUN"


async def test_a_client_that_names_no_server_gets_the_present_certificate_too(
    secured: Served, authority: SimulatedAuthority
) -> None:
    """The exchange does not depend on the name that a client asks for."""
    expected = authority.issue()
    await serves(secured, authority.ca_pem, expected)
    for address in ports(secured):
        assert await leaf(address, authority.ca_pem, name=None) == expected


async def test_a_bad_pair_is_refused_and_the_old_one_goes_on(secured: Served, authority: SimulatedAuthority) -> None:
    before = authority.issue()
    await serves(secured, authority.ca_pem, before)
    with capture_logs() as logged:
        authority.spoil()
        await until(lambda: any(entry["event"] == "dependency.failing" for entry in logged))
    for address in ports(secured):
        assert await leaf(address, authority.ca_pem) == before
    await serves(secured, authority.ca_pem, authority.issue())


@pytest.mark.parametrize("wire", ["grpc", "http"])
async def test_a_client_without_our_ca_is_not_talked_into_it(secured: Served, wire: str) -> None:
    """A foreign CA; and no token is sent to a server that was not verified."""
    address = ports(secured)[wire == "http"]
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        await leaf(address, trustme.CA().cert_pem.bytes())


async def test_a_client_that_does_not_speak_tls_is_refused_and_nobody_else_notices(secured: Served) -> None:
    endpoints = {"grpc": secured.peers.grpc, "http": secured.peers.http.replace("https:", "http:")}
    async with ServedPeers.of(secured.peers.tokens, endpoints) as plain:
        with pytest.raises(aiohttp.ClientError):
            await plain.post("/v1/processes/report", "token", {})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plain.agent("n1")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await secured.peers.agent("n1")


async def test_beyond_loopback_it_serves_with_a_certificate(tmp_path: Path, authority: SimulatedAuthority) -> None:
    everywhere: dict[str, Any] = {"grpc_address": "0.0.0.0:0", "http_address": "0.0.0.0:0"}
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(
            serving(tmp_path, authority.ca_pem, **tls_settings(authority), **everywhere)
        )
        here = {name: getattr(served.peers, name).replace("0.0.0.0", "localhost") for name in ("grpc", "http")}
        peers = await stack.enter_async_context(ServedPeers.of(served.peers.tokens, here, authority.ca_pem))
        await peers.agent("n1")
        await peers.launcher("job", ["n1"])


def test_a_certificate_that_cannot_be_served_is_said_in_a_sentence(
    tmp_path: Path, authority: SimulatedAuthority
) -> None:
    """The command ends with 1, and nothing is made."""
    authority.spoil()
    named = {"TLS_CERT_FILE": authority.cert_file, "TLS_KEY_FILE": authority.key_file, "DATA_DIR": tmp_path / "data"}
    environment = {**os.environ, **{PREFIX + name: str(path) for name, path in named.items()}}
    command = [sys.executable, "-m", "supervisor", "serve"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "do not match" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()
