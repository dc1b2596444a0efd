"""Runs the servers, gRPC for agents, HTTP for launchers, training processes and viewers, and answers the probes.

Both servers have TLS, or neither has.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import grpc
import msgspec
import structlog
from aiohttp import web

from servicekit import process
from servicekit.address import Address
from servicekit.failpoints import failpoint
from servicekit.files import draft_beside
from servicekit.http_server import Drop, GuardedSite, timed
from servicekit.lifecycle import Health
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
"""The refusal code of a dropped connection; other drops are not refusals."""

_log = structlog.get_logger()


class Endpoints(Protocol):
    """A group of HTTP endpoints."""

    def routes(self) -> list[web.RouteDef]:
        """Returns the paths and their handlers."""


class ServingState(StrEnum):
    """The progress of the start."""

    STARTING = "starting"
    STANDING_BY = "standing by"
    SERVING = "serving"


@dataclass(slots=True)
class SupervisorHealth:
    """Answers the probes.

    A replica is ready if it serves or can take over, so that replicas can be rolled one by one.
    """

    standing: ServingState = ServingState.STARTING

    def live(self) -> Health:
        """Returns healthy while the process answers, because nothing outside the process may make this probe fail."""
        return Health(ok=True, detail={"standing": self.standing})

    def ready(self) -> Health:
        """Returns healthy once the store has been read."""
        return Health(ok=self.standing is not ServingState.STARTING, detail={"standing": self.standing})


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Both servers; `end_streams` is called when they stop, `on_serving` with the URL of HTTP."""

    settings: Settings
    certificate: ServerCertificate | None
    agents: ReclaimService
    endpoints: Iterable[Endpoints]
    refusals: Refusals
    end_streams: Callable[[], None]
    on_serving: Callable[[str], None]

    async def run(self) -> None:
        """Serves until cancelled.

        Raises:
            OSError: An address cannot be used.
        """
        # The streams end before the servers stop. The stack also stops the first server if the second one cannot start:
        # gRPC prints a traceback for a server that is not stopped.
        async with AsyncExitStack() as stack:
            runner, http = await self._start_http()
            stack.push_async_callback(runner.cleanup)
            failpoint(At.HTTP_BOUND)
            server, agents = await self._start_grpc()
            stack.push_async_callback(server.stop, _STOP_SECONDS)
            stack.callback(self.end_streams)
            scheme = "http" if self.certificate is None else "https"
            url = f"{scheme}://{http}"
            write_endpoints(self.settings.data_dir, {"grpc": str(agents), "http": url})
            _log.info("supervisor.serving", grpc=str(agents), http=str(http), tls=self.certificate is not None)
            self.on_serving(url)
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
            # A few hundred bytes can unpack to gigabytes.
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
        process.init_grpc()
        server = grpc.aio.server(options=_grpc_options(self.settings.connection_seconds))
        server.add_generic_rpc_handlers((self.agents,))
        address = self.settings.grpc
        try:
            if self.certificate is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), _credentials(self.certificate))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for agents") from error
        await server.start()
        return server, Address(address.host, port)


def write_endpoints(directory: Path, endpoints: Mapping[str, str]) -> None:
    """Writes the addresses of the servers to endpoints.json, because port 0 lets the system choose the port."""
    with draft_beside(directory / ENDPOINTS_FILE) as file:
        file.write_bytes(msgspec.json.encode(endpoints))
        failpoint(At.ENDPOINTS_WRITTEN)
        file.replace(directory / ENDPOINTS_FILE)
    failpoint(At.ENDPOINTS_REPLACED)


def _grpc_options(patience: float) -> list[tuple[str, int]]:
    """Returns the limits of one agent's connection; `patience` is in seconds."""
    milliseconds = round(patience * 1000)
    return [
        # Above this limit gRPC itself refuses a message; ingest refuses and counts messages above 1 MiB.
        ("grpc.max_receive_message_length", 4 * 1024 * 1024),
        ("grpc.so_reuseport", 0),
        # For TLS and HTTP/2 together; the default is 120 s.
        ("grpc.server_handshake_timeout_ms", milliseconds),
        # For a connection without a stream.
        ("grpc.max_connection_idle_ms", milliseconds),
        # A peer that answers no ping is dropped after 60 + 10 s, and one that acknowledges no data after 10 s. A ping
        # costs no more than a heartbeat, which goes through Python, but every 30 s they were half of what an idle
        # supervisor with 5,000 agents does: 180 us each.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Where a frozen peer's kernel acknowledges the ping, this counts instead; the default is 60 s.
        ("grpc.http2.ping_timeout_ms", 10_000),
        # gRPC ends a connection at the third ping of a peer that comes sooner than this after the one before.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # Otherwise gRPC pings every 10 s to measure the bandwidth, however little is sent.
        ("grpc.http2.bdp_probe", 0),
        # An agent opens one stream, but HTTP/2 advises against limits below 100.
        ("grpc.max_concurrent_streams", 100),
    ]


def _credentials(certificate: ServerCertificate) -> grpc.ServerCredentials:
    """Returns credentials that gRPC fetches at each handshake, in its own threads; None means unchanged."""
    served = None

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        if certificate.pair is served:
            return None
        served = certificate.pair
        return grpc.ssl_server_certificate_configuration([(served.key, served.certificate)])

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch)  # type: ignore[arg-type]  # None is documented.


async def _alive(_request: web.Request) -> web.Response:
    return web.json_response({"ok": True})
