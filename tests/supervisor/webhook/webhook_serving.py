"""The webhook's server on loopback, and a client that sends it reviews."""

import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.tls import Files, ServerCertificate
from simulator.certificates import SimulatedAuthority
from supervisor.refusals import Refusals
from supervisor.webhook.server import PATH, Webhook
from tests.supervisor.webhook.webhook_pods import GIFTS, answered


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer: its status, its response, and the patch in it."""

    status: int
    response: Any
    patch: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asking:
    session: aiohttp.ClientSession
    address: Address
    refusals: Refusals

    @property
    def url(self) -> str:
        return f"https://{self.address}{PATH}"

    async def ask(self, review: object, path: str = PATH) -> Asked:
        return await self.send(json.dumps(review).encode(), path)

    async def send(self, body: bytes, path: str = PATH) -> Asked:
        headers = {"Content-Type": "application/json"}
        url = f"https://{self.address}{path}"
        async with self.session.post(url, data=io.BytesIO(body), headers=headers) as answer:
            text = await answer.read()
            if answer.status != 200:
                return Asked(answer.status, json.loads(text), [])
            return Asked(200, *answered(text))


@asynccontextmanager
async def asking(authority: SimulatedAuthority) -> AsyncIterator[Asking]:
    """A client that trusts that authority."""
    files = Files(authority.cert_file, authority.key_file)
    refusals = Refusals()
    webhook = Webhook(
        bulkhead=Bulkhead(Clock()),
        address=Address("127.0.0.1", 0),
        certificate=ServerCertificate(files, 5.0, Clock()),
        refusals=refusals,
        injection=lambda: GIFTS,
    )
    trusted = ssl.create_default_context(cadata=authority.ca_pem.decode())
    async with (
        webhook.serving() as address,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session,
    ):
        yield Asking(session, address, refusals)
