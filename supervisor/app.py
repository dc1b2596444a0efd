"""The wiring list: what the supervisor is made of."""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import grpc
import msgspec
import structlog
from aiohttp import web
from reclaim.v1.reclaim_pb2_grpc import add_ReclaimServiceServicer_to_server

from servicekit.address import Address
from servicekit.clock import Clock
from servicekit.lifecycle import run_tasks, stop_on_signals
from supervisor.control.facts import Facts
from supervisor.control.loop import Control, Ports
from supervisor.domain.ids import Host, JobName
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.identity.tokens import Tokens
from supervisor.ingest.ageing import Ageing
from supervisor.ingest.agents import AgentPorts, ReclaimService
from supervisor.ingest.http import refusals
from supervisor.ingest.launchers import LauncherEndpoints
from supervisor.ingest.processes import ProcessEndpoints
from supervisor.jobs.standalone import StandaloneJobs
from supervisor.presence import Agents
from supervisor.record.status import StatusEndpoint
from supervisor.settings import Settings
from supervisor.store.interface import StoreUnavailableError
from supervisor.store.sqlite import SqliteStore

STORE_FILE = "supervisor.sqlite"
ENDPOINTS_FILE = "endpoints.json"
_BACKLOG = 4096  # 128 makes a reconnect storm of 2,000 take 28 s.
_MOST_GRPC_BYTES = 1024 * 1024
_STOP_SECONDS = 0.5
_PRUNE_SECONDS = 600.0

_log = structlog.get_logger()


class Supervisor:
    """All parts, wired; `serve` runs them until `stop` is set."""

    def __init__(self, settings: Settings, store: SqliteStore, tokens: Tokens, clock: Clock) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._agents = Agents(self._agent_changed, clock.now)
        self._facts = Facts(store, self._agents, settings)
        self._processes = Processes(self._facts.directive, clock.now, self._rank_zero_changed)
        self._launchers = Launchers(tokens.process, clock.now)
        self._control = Control(
            Ports(
                store=store,
                facts=self._facts,
                processes=self._processes,
                adapter=StandaloneJobs(self._launchers),
                policy=settings,
                clock=clock,
            )
        )
        self._ageing = Ageing(store, self._agents, settings, clock)
        self._reclaim = ReclaimService(
            AgentPorts(
                store=store,
                agents=self._agents,
                bearer=tokens.bearer,
                policy=settings,
                clock=clock,
                heartbeat_seconds=settings.heartbeat_seconds,
            )
        )
        self._endpoints = (
            LauncherEndpoints(
                store=store,
                launchers=self._launchers,
                bearer=tokens.bearer,
                clock=clock,
                live_seconds=settings.launcher_live_seconds,
            ),
            ProcessEndpoints(store=store, processes=self._processes, bearer=tokens.bearer, clock=clock),
            StatusEndpoint(store=store, agents=self._agents, bearer=tokens.bearer, clock=clock),
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then stops against the flow: goodbye on the streams, then the servers."""
        tasks = {
            "store": self._store.run,
            "control": self._control.run,
            "ageing": self._ageing.run,
            "watch": self._watch,
            "heartbeat": self._beat,
            "retention": self._prune,
            "servers": self._serve,
        }
        await run_tasks(tasks, stop)

    async def prune_once(self) -> None:
        """Forgets what ended long ago; what cannot be forgotten now will be later."""
        try:
            await self._store.prune(self._clock.now() - self._settings.retention_hours * 3600)
        except StoreUnavailableError as error:
            _log.warning("store.not_pruned", why=str(error))

    async def _watch(self) -> None:
        version = 0
        while True:
            version = (await self._store.changed(version)).version
            self._facts_changed()

    def _facts_changed(self) -> None:
        self._control.poke()
        self._ageing.poke()

    def _agent_changed(self, _node: Host) -> None:
        self._facts_changed()

    def _rank_zero_changed(self, _job: JobName) -> None:
        self._control.poke()

    async def _serve(self) -> None:
        http_runner, http = await self._start_http()
        agents_server, agents = await self._start_grpc()
        write_endpoints(self._settings.data_dir, {"grpc": str(agents), "http": f"http://{http}"})
        _log.info("supervisor.serving", grpc=str(agents), http=str(http))
        try:
            await asyncio.Event().wait()
        finally:
            self._reclaim.finish()
            self._processes.finish("the supervisor is stopping")
            self._launchers.finish("the supervisor is stopping")
            await agents_server.stop(_STOP_SECONDS)
            await http_runner.cleanup()

    async def _start_http(self) -> tuple[web.AppRunner, Address]:
        app = web.Application(middlewares=[refusals])
        for endpoints in self._endpoints:
            app.router.add_routes(endpoints.routes())
        app.router.add_get("/livez", _alive)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_STOP_SECONDS)
        await runner.setup()
        address = self._settings.http
        await web.TCPSite(runner, address.host, address.port, backlog=_BACKLOG).start()
        return runner, Address(*runner.addresses[0][:2])

    async def _start_grpc(self) -> tuple[grpc.aio.Server, Address]:
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", _MOST_GRPC_BYTES), ("grpc.so_reuseport", 0)]
        )
        add_ReclaimServiceServicer_to_server(self._reclaim, server)
        address = self._settings.grpc
        try:
            port = server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for agents") from error
        await server.start()
        return server, Address(address.host, port)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            self._processes.heartbeat()
            self._launchers.heartbeat()

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            await self.prune_once()


async def serve(settings: Settings) -> int:
    """Runs the supervisor until SIGTERM or SIGINT; returns the exit code."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = Tokens.load(settings.data_dir)
    store = await SqliteStore.open(settings.data_dir / STORE_FILE)
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop):
            await Supervisor(settings, store, tokens, Clock()).serve(stop)
    finally:
        await store.close()
    return 0


def write_endpoints(directory: Path, endpoints: Mapping[str, str]) -> None:
    """Says where this supervisor serves, for those who let it choose its ports."""
    handle, name = tempfile.mkstemp(dir=directory, prefix=".endpoints-")
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(endpoints))
    Path(name).replace(directory / ENDPOINTS_FILE)


async def _alive(_request: web.Request) -> web.Response:
    return web.json_response({"ok": True})
