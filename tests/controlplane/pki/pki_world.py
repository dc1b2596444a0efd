"""Supervisors that keep their keys in the cluster, and the stored keys as an administrator sees them."""

import asyncio
import base64
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from servicekit.address import Address, parse
from servicekit.clock import Clock
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.identity.tokens import Tokens
from supervisor.pki.keys import CA, TOKENS
from supervisor.pki.renewal import KeysSecret
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import PREFIX
from tests.controlplane.leader.leader_replicas import LeaderReplica, LeaderReplicas
from tests.testkit.controlplane.api import Api, ObjectRefused
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.serving import ServedPeers
from tests.testkit.waiting import PATIENCE, until

SECRET, CONFIG_MAP, WEBHOOK = "elastic-job-supervisor-keys", "elastic-job-supervisor-ca", "elastic-job-supervisor"
CORE = "/api/v1/namespaces/default"
SECRET_PATH, CONFIG_MAP_PATH = f"{CORE}/secrets/{SECRET}", f"{CORE}/configmaps/{CONFIG_MAP}"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAMES = "localhost,127.0.0.1"
"""For a supervisor to start on a machine with much else to do."""
LOOKS_OFTEN = 0.006
"""Hours of a certificate's life: it and the Secret are looked at every two seconds."""

_PAGE = Path(__file__).parents[3] / "docs" / "kubernetes" / "keys.md"


@dataclass(frozen=True, slots=True)
class Shared:
    replicas: LeaderReplicas

    @classmethod
    @asynccontextmanager
    async def on(cls, place: InstalledPlace, root: Path) -> AsyncIterator[Self]:
        """On that control plane, where nobody has led or made keys before."""
        async with LeaderReplicas.on(place, root) as replicas:
            await replicas.forget_lease()
            shared = cls(replicas)
            for path in (SECRET_PATH, CONFIG_MAP_PATH, f"{WEBHOOKS}/{WEBHOOK}"):
                await shared.forget(path)
            yield shared

    @property
    def api(self) -> Api:
        return self.replicas.place.api

    async def start(self, *, serving: bool = True, **changes: Any) -> LeaderReplica:
        settings = {"keys_secret": SECRET, "tls_names": NAMES, **changes}
        return await self.replicas.start(serving=serving, within=PATIENCE, **settings)

    async def forget(self, path: str) -> None:
        try:
            await self.api.delete(path)
        except ObjectRefused as refused:
            if refused.status != 404:
                raise

    async def secret(self) -> dict[str, bytes]:
        data = (await self.api.get(SECRET_PATH))["data"]
        return {name: base64.b64decode(value) for name, value in data.items()}

    async def put(self, content: Mapping[str, bytes]) -> None:
        data = {name: base64.b64encode(value).decode() for name, value in content.items()}
        await self.api.create(f"{CORE}/secrets", {"metadata": {"name": SECRET}, "data": data})

    async def change(self, content: Mapping[str, bytes]) -> None:
        data = {name: base64.b64encode(value).decode() for name, value in content.items()}
        await self.api.patch(SECRET_PATH, {"data": data})

    async def trusted(self) -> bytes:
        return str((await self.api.get(CONFIG_MAP_PATH))["data"]["ca.crt"]).encode()

    @asynccontextmanager
    async def peers(self, replica: LeaderReplica) -> AsyncIterator[ServedPeers]:
        """Peers of the one that serves, who trust what is published, with tokens of the Secret."""
        secret = await self.secret()
        async with ServedPeers.of(Tokens(secret[TOKENS]), endpoints(replica), secret[CA]) as peers:
            yield peers

    @asynccontextmanager
    async def keychain(self) -> AsyncIterator[KeysSecret]:
        async with self.server() as server:
            yield KeysSecret(server, ObjectKey("default", SECRET), Clock())

    @asynccontextmanager
    async def server(self) -> AsyncIterator[ApiServer]:
        server = await ApiServer.connect(str(self.replicas.kubeconfig), 10.0)
        try:
            yield server
        finally:
            await server.close()

    async def token(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        settings = {"STORE": "kubernetes", "KEYS_SECRET": SECRET, "DATA_DIR": "/nowhere", **changes}
        variables = {PREFIX + name: value for name, value in settings.items()}
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "supervisor", "token", *arguments],
            env={**os.environ, **variables, "KUBECONFIG": str(self.replicas.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def endpoints(replica: LeaderReplica) -> dict[str, str]:
    said: dict[str, str] = json.loads((replica.directory / ENDPOINTS_FILE).read_bytes())
    return said


def ports(replica: LeaderReplica) -> tuple[Address, Address]:
    said = endpoints(replica)
    return parse(said["grpc"]), parse(said["http"].removeprefix("https://"))


def another(directory: Path) -> tuple[bytes, bytes]:
    """A new authority and its key, by the command on the page."""
    (command,) = re.findall(r"^openssl req (?:.*\\\n)*.*$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    subprocess.run(["/bin/bash", "-ec", command], cwd=directory, check=True, capture_output=True, timeout=30)
    return (directory / "new.crt").read_bytes(), (directory / "new.key").read_bytes()


async def published(shared: Shared, expected: bytes) -> None:
    async def said() -> bool:
        return await shared.trusted() == expected

    await until(said, "what is to be trusted")


async def leaf(address: Address, trusted: bytes) -> bytes:
    """The certificate that a new connection verifies.

    Raises:
        ssl.SSLCertVerificationError: It is not accepted.
    """
    context = ssl.create_default_context(cadata=trusted.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname="localhost")
    try:
        return ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(binary_form=True)).encode()
    finally:
        writer.transport.abort()


async def serves_another(replica: LeaderReplica, trusted: bytes, before: bytes) -> None:
    """Waits until both ports serve another certificate than that one, which that authority has issued."""
    for address in ports(replica):

        async def another(address: Address = address) -> bool:
            return await _seen(address, trusted) not in (before, None)

        await until(another, f"{address} serves another certificate")


async def _seen(address: Address, trusted: bytes) -> bytes | None:
    try:
        return await leaf(address, trusted)
    except ssl.SSLCertVerificationError:
        return None
