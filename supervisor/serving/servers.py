"""The two servers: gRPC for agents, HTTP for launchers and training processes, both with TLS or both without."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import msgspec
import structlog
from aiohttp import web

from servicekit import grpc_events
from servicekit.address import Address
from servicekit.connections import Drop, GuardedSite, timed
from servicekit.failpoints import failpoint
from servicekit.files import draft_beside
from servicekit.tls import ServerCertificate
from supervisor.failpoints import At
from supervisor.ingest.agents import ReclaimService
from supervisor.ingest.http import protocol_log, refusing
from supervisor.refusals import Code, Refusals, Wire
from supervisor.settings import Settings

ENDPOINTS_FILE = "endpoints.json"
_STOP_SECONDS = 0.5

_DROPPED = {
    Drop.NO_REQUEST: Code.TOO_SLOW,
    Drop.TOO_SLOW: Code.TOO_SLOW,
    Drop.TOO_MANY: Code.BAD_REQUEST,
}
"""What is said against connections that were dropped; nothing against those that had done their work."""

_log = structlog.get_logger()


class Endpoints(Protocol):
    """Some of what is served over HTTP."""

    def routes(self) -> list[web.RouteDef]:
        """Paths and their handlers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Both servers; `goodbye` ends all streams when they stop."""

    settings: Settings
    certificate: ServerCertificate | None
    agents: ReclaimService
    endpoints: Iterable[Endpoints]
    refusals: Refusals
    goodbye: Callable[[], None]

    async def run(self) -> None:
        """Serves until cancelled.

        Raises:
            OSError: An address cannot be had.
        """
        # Stopped against the flow, also where one of them cannot be started: gRPC prints a traceback of a server that
        # is not stopped.
        async with AsyncExitStack() as stack:
            runner, http = await self._start_http()
            stack.push_async_callback(runner.cleanup)
            failpoint(At.HTTP_BOUND)
            server, agents = await self._start_grpc()
            stack.push_async_callback(server.stop, _STOP_SECONDS)
            stack.callback(self.goodbye)
            scheme = "http" if self.certificate is None else "https"
            write_endpoints(self.settings.data_dir, {"grpc": str(agents), "http": f"{scheme}://{http}"})
            _log.info("supervisor.serving", grpc=str(agents), http=str(http), tls=self.certificate is not None)
            await asyncio.Event().wait()

    async def _start_http(self) -> tuple[web.AppRunner, Address]:
        app = web.Application(middlewares=[timed, refusing(self.refusals)])
        for endpoints in self.endpoints:
            app.router.add_routes(endpoints.routes())
        app.router.add_get("/livez", _alive)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=protocol_log(self.refusals),
            # A few hundred bytes that unpack to gigabytes are no honest report.
            auto_decompress=False,
            handler_cancellation=True,
            shutdown_timeout=_STOP_SECONDS,
        )
        await runner.setup()
        context = None if self.certificate is None else self.certificate.context
        patience = self.settings.connection_seconds
        await GuardedSite(runner, self.settings.http, context, timeout_seconds=patience, on_drop=self._dropped).start()
        return runner, Address(*runner.addresses[0][:2])

    def _dropped(self, why: Drop) -> None:
        if why in _DROPPED:
            self.refusals.add(Wire.HTTP, _DROPPED[why], why)

    async def _start_grpc(self) -> tuple[grpc.aio.Server, Address]:
        grpc_events.init_grpc()
        server = grpc.aio.server(options=_grpc_options(self.settings.connection_seconds))
        server.add_generic_rpc_handlers((self.agents,))
        address = self.settings.grpc
        try:
            port = self._add_port(server, str(address))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for agents") from error
        await server.start()
        return server, Address(address.host, port)

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        if self.certificate is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _credentials(self.certificate))


def write_endpoints(directory: Path, endpoints: Mapping[str, str]) -> None:
    """Says where this supervisor serves, for those who let it choose its ports."""
    with draft_beside(directory / ENDPOINTS_FILE) as file:
        file.write_bytes(msgspec.json.encode(endpoints))
        failpoint(At.ENDPOINTS_WRITTEN)
        file.replace(directory / ENDPOINTS_FILE)
    failpoint(At.ENDPOINTS_REPLACED)


def _grpc_options(patience: float) -> list[tuple[str, int]]:
    """What one agent's connection may take; a patience in seconds."""
    milliseconds = round(patience * 1000)
    return [
        # What gRPC itself cuts off; ingest refuses messages from 1 MiB on, and counts them.
        ("grpc.max_receive_message_length", 4 * 1024 * 1024),
        ("grpc.so_reuseport", 0),
        # Until TLS and HTTP/2 stand; 120 s where nothing is said.
        ("grpc.server_handshake_timeout_ms", milliseconds),
        # A connection without a stream, whether it was left or never used.
        ("grpc.max_connection_idle_ms", milliseconds),
        # A peer that acknowledges nothing is gone after 10 + 15 s, though agents are judged by their heartbeats first.
        # A peer's own pings need no setting: gRPC ends a connection at the third within five minutes without data.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 15_000),
        # An agent has one. HTTP/2 advises against fewer than a hundred.
        ("grpc.max_concurrent_streams", 100),
    ]


def _credentials(certificate: ServerCertificate) -> grpc.ServerCredentials:
    """Asked for by gRPC at each handshake, in threads of its own; None stands for "as before"."""
    served = certificate.pair

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(served.key, served.certificate)])

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        if certificate.pair is served:
            return None
        served = certificate.pair
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), fetch)  # type: ignore[arg-type]  # None is documented.


async def _alive(_request: web.Request) -> web.Response:
    return web.json_response({"ok": True})
