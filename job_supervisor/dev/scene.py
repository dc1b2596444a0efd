"""Everything that `dev` runs: the supervisor, the hosts and the job."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from job_supervisor.cli.data_dir import token_maker
from job_supervisor.cli.errors import CliError
from job_supervisor.cli.http_backend import Address, HttpBackend
from job_supervisor.cli.status import Status
from job_supervisor.dev.children import Child, command, start, stop_all
from job_supervisor.dev.errors import ChildEnded, DevError
from job_supervisor.dev.hosts import SimulatedHost
from job_supervisor.dev.narration import say
from job_supervisor.dev.options import JOB, Options
from job_supervisor.dev.workspace import Workspace
from supervisor.observability.views import JobView
from supervisor.serving.servers import ENDPOINTS_FILE

GRPC_PORT, HTTP_PORT = 8470, 8471
_SAMPLE = (sys.executable, "-P", "-m", "kubeai.elastic.sample.launcher")
LOOK_SECONDS = 0.2
_STOP_SECONDS = 5.0
_STOPPED_CODE = 143
"""kubeai-run's own: ended by SIGTERM, or by the supervisor."""
# kubeai-run itself waits up to 60 s for a checkpoint and 10 s for the launcher.
_JOB_STOP_SECONDS = 90.0


class _Endpoints(msgspec.Struct, frozen=True):
    grpc: str
    http: str


@dataclass(slots=True, kw_only=True)
class Scene:
    """What runs. Make it with `opened`."""

    options: Options
    workspace: Workspace
    url: str
    backend: HttpBackend
    supervisor: Child
    hosts: list[SimulatedHost]
    job: Child | None = field(default=None)

    def host(self, name: str) -> SimulatedHost:
        return next(host for host in self.hosts if host.name == name)

    def check(self) -> None:
        """Checks that every process runs that should. Agents that were killed are started again.

        Raises:
            ChildEnded: One does not.
        """
        for host in self.hosts:
            host.restart_killed_agent()
        for child in self.children():
            if not (child is self.job and self.is_job_done):
                child.check()

    @property
    def is_job_done(self) -> bool:
        """Whether the job has ended successfully."""
        return self.job is not None and self.job.process.poll() == 0

    @property
    def was_job_stopped(self) -> bool:
        """Whether kubeai-run has ended because somebody asked for that, as with `job-supervisor stop`."""
        return self.job is not None and self.job.process.poll() == _STOPPED_CODE

    def children(self) -> Iterator[Child]:
        yield self.supervisor
        yield from (host.agent for host in self.hosts if host.agent is not None)
        if self.job is not None:
            yield self.job

    async def status(self) -> Status:
        """Returns the present status, and checks the processes.

        Raises:
            ChildEnded: A process has ended.
            DevError: The supervisor does not answer.
        """
        self.check()
        try:
            return await self.backend.status()
        except CliError as error:
            self.check()
            raise DevError(str(error)) from error

    async def job_status(self) -> JobView | None:
        """Returns the job; None until it has registered."""
        return next((job for job in (await self.status()).jobs if job.job == JOB), None)

    async def await_agents(self) -> None:
        """Waits until the agent of every host is connected."""
        connected = 0
        while connected < len(self.hosts):
            await asyncio.sleep(LOOK_SECONDS)
            connected = sum(agent.connected for agent in (await self.status()).agents or [])
        say(f"The supervisor serves at {self.url}. The node agents of {len(self.hosts)} simulated hosts are connected.")

    def start_job(self) -> None:
        own = self.options.command
        if own is not None:
            # The output of the user's own job belongs on the terminal.
            log = None if own else self.workspace.log("job")
            arguments = [command("kubeai-run"), *self._job_arguments(), "--", *(own or self._sample())]
            self.job = start("kubeai-run", arguments, {}, log)

    def _job_arguments(self) -> Iterator[str]:
        yield from ("--job", JOB, "--supervisor", self.url, "--token-file", str(self.workspace.launcher_token))
        yield from ("--min-workers", str(self.options.min_workers), "--max-workers", str(len(self.options.hosts)))
        # All hosts are this machine: no port tells them apart.
        yield from ("--hosts-file", str(self.workspace.hosts_file), "--port", "0")

    def _sample(self) -> Iterator[str]:
        yield from _SAMPLE
        yield from ("--checkpoint", str(self.workspace.job / "checkpoint"), "--progress", str(self.workspace.progress))

    async def close(self) -> None:
        """Ends everything against the flow: the job first, which saves, and the supervisor last."""
        if self.job is not None and self.job.running:
            say("Ending the job: rank 0 saves a checkpoint first.")
            await self.job.stop(_JOB_STOP_SECONDS)
        await stop_all((host.agent for host in self.hosts if host.agent is not None), _STOP_SECONDS)
        await self.supervisor.stop(_STOP_SECONDS)

    def kill(self) -> None:
        """Ends everything at once."""
        for child in self.children():
            child.process.kill()


@asynccontextmanager
async def opened(options: Options, workspace: Workspace) -> AsyncIterator[Scene]:
    """Starts the supervisor and the hosts, and ends all processes at the end.

    Raises:
        UsageError: The SDK is not installed.
        ChildEnded: A process ended instead.
    """
    command("kubeai-run")
    workspace.prepare(options.hosts)
    supervisor, endpoints = await _serving(workspace)
    try:
        address = Address(endpoints.http)
        async with HttpBackend.open(address, address.ssl_context(), token_maker(workspace.directory)) as backend:
            hosts = [SimulatedHost(name, endpoints.grpc, workspace) for name in options.hosts]
            scene = Scene(
                options=options,
                workspace=workspace,
                url=endpoints.http,
                backend=backend,
                supervisor=supervisor,
                hosts=hosts,
            )
            try:
                for host in hosts:
                    host.boot()
                yield scene
            finally:
                scene.kill()
    finally:
        with suppress(ProcessLookupError):
            supervisor.process.kill()


async def _serving(workspace: Workspace) -> tuple[Child, _Endpoints]:
    """Starts the supervisor, again if another program took a port in the meantime."""
    ports = _free_ports()
    while True:
        supervisor = _start_supervisor(workspace, ports)
        try:
            return supervisor, await _endpoints(supervisor, workspace)
        except ChildEnded:
            before, ports = ports, _free_ports()
            if ports == before:
                raise
        except BaseException:
            supervisor.process.kill()
            raise


def _start_supervisor(workspace: Workspace, ports: tuple[int, int]) -> Child:
    grpc, http = ports
    settings = {
        "JOB_SUPERVISOR_DATA_DIR": str(workspace.directory),
        "JOB_SUPERVISOR_GRPC_ADDRESS": f"127.0.0.1:{grpc}",
        "JOB_SUPERVISOR_HTTP_ADDRESS": f"127.0.0.1:{http}",
    }
    arguments = [command("elastic-job-supervisor"), "serve"]
    return start("The supervisor", arguments, settings, workspace.log("supervisor"))


def _free_ports() -> tuple[int, int]:
    return _free(GRPC_PORT, "agents"), _free(HTTP_PORT, "jobs, commands and the status page")


def _free(port: int, whose: str) -> int:
    """The port, or 0 for a free one if another program listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            say(f"Another program uses port {port}: taking a free port for {whose}.")
            return 0
    return port


async def _endpoints(supervisor: Child, workspace: Workspace) -> _Endpoints:
    file = workspace.directory / ENDPOINTS_FILE
    while not file.exists():
        supervisor.check()
        await asyncio.sleep(LOOK_SECONDS)
    return msgspec.json.decode(file.read_bytes(), type=_Endpoints)
