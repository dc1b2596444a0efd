"""Runs and ends everything of `dev`: its processes and files, the supervisor, the simulated hosts and the job.

None of the processes outlives it, not even after SIGKILL.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from job_supervisor.cli.backend import SeenStatus
from job_supervisor.cli.data_dir import LOCK_FILE, ServedEndpoints, endpoints, serves, token_maker
from job_supervisor.cli.errors import CliError
from job_supervisor.cli.http_backend import HttpBackend, SupervisorAddress
from job_supervisor.cli.output import printable
from job_supervisor.dev.options import JOB, ChildEnded, DevError, DevOptions, DevUsageError
from servicekit.files import write_private
from supervisor.identity.tokens import Operator, Tokens
from supervisor.observability.views import JobView

# A script of the SDK, which the kernel makes end with its parent. It is started by name: nothing here imports the SDK.
_WITH_PARENT = "kubeai.elastic.commands.die_with_parent"
_OWN_VARIABLES = ("JOB_SUPERVISOR_", "NODE_AGENT_", "SUPERVISOR_CLI_", "KUBEAI_")
_POLL_SECONDS = 0.05
_TAIL_LINES = 8
_LINK_SECONDS = 3600.0

_started = time.monotonic()


def say(text: str) -> None:
    """Prints a sentence, with the seconds since the start of `dev`."""
    seconds = f"{time.monotonic() - _started:5.1f} s  "
    first, *others = text.splitlines()
    sys.stdout.write("".join(printable(line) + "\n" for line in (seconds + first, *others)))
    sys.stdout.flush()


def command(name: str) -> str:
    """Finds a command that is installed with this one, or is on the user's path.

    Raises:
        DevUsageError: There is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DevUsageError(
            f"`dev` needs {name}, which is not installed here. The SDK has it: pip install kubeai-elastic."
        )
    return found


@dataclass(frozen=True, slots=True)
class DevProcess:
    """A started process; `log` is None if its output goes to the terminal."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def manner(self) -> str:
        """How the process has ended, in words."""
        code = self.process.returncode
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        return f"{self.name} {how}"

    def check(self) -> None:
        """Checks that the process runs.

        Raises:
            ChildEnded: It does not. The message has the end of its log.
        """
        if self.running:
            return
        if self.log is None:
            raise ChildEnded(f"{self.manner}.")
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        shown = "".join(f"\n  {line}" for line in lines)
        output = f"Its last output, from {self.log}:{shown}" if shown else "It has written nothing."
        raise ChildEnded(f"{self.manner}. {output}")

    async def ended(self) -> int:
        while (code := self.process.poll()) is None:  # noqa: ASYNC110 - nothing sets an event: we have no watcher.
            await asyncio.sleep(_POLL_SECONDS)
        return code

    async def stop(self, grace: float) -> None:
        """Sends SIGTERM, and SIGKILL after `grace` seconds."""
        self.process.terminate()
        try:
            async with asyncio.timeout(grace):
                await self.ended()
        except TimeoutError:
            self.process.kill()
            await self.ended()


def start(name: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path | None) -> DevProcess:
    """Starts a process in a session of its own, so that Ctrl-C in the terminal reaches `dev` alone."""
    # The user's environment without settings of ours, and with this installation's commands on the path.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    path = os.pathsep.join([sysconfig.get_path("scripts"), kept.get("PATH", os.defpath)])
    wrapped = [sys.executable, "-P", "-m", _WITH_PARENT, str(os.getpid()), *arguments]
    with ExitStack() as stack:
        output = None
        if log is not None:  # Only its owner may read it.
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            output = stack.enter_context(os.fdopen(descriptor, "ab"))
        process = subprocess.Popen(  # noqa: S603 - our own commands, and the job that the user has named.
            wrapped,
            env={**kept, "PATH": path, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return DevProcess(name, process, log)


async def stop_all(children: Iterable[DevProcess], grace: float) -> None:
    """Stops processes all at once."""
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child.stop(grace))


GRPC_PORT, HTTP_PORT = 8470, 8471
_SAMPLE = (sys.executable, "-P", "-m", "kubeai.elastic.sample.launcher")
LOOK_SECONDS = 0.2
_STOP_SECONDS = 5.0
_STOPPED_CODE = 143
"""kubeai-run's own: ended by SIGTERM, or by the supervisor."""
# kubeai-run itself waits up to 60 s for a checkpoint and 10 s for the launcher.
_JOB_STOP_SECONDS = 90.0


class DevWorkspace:
    """The files of `dev`. `directory` is the supervisor's data directory and contains all the others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hosts_file = directory / "hosts"
        self.viewer_token = directory / "viewer.token"
        self.launcher_token = directory / "launcher.token"
        self.checkpoint = directory / "job" / "checkpoint"
        self.progress = directory / "job" / "progress"
        self.logs = directory / "logs"

    def agent_token(self, host: str) -> Path:
        return self.directory / "agents" / f"{host}.token"

    def reclaim_file(self, host: str) -> Path:
        """The file that announces a reclaim of the host, which its agent watches."""
        return self.directory / "agents" / f"{host}.reclaim"

    def clear(self) -> None:
        """Removes all files of `dev`."""
        for entry in self.directory.iterdir():
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def sign_in_link(self, url: str) -> str:
        """Makes the address that signs the user in to the page at a URL, once, as somebody who may do everything."""
        return Tokens.load(self.directory).link(Operator(name="dev"), url, time.time(), _LINK_SECONDS)

    def prepare(self, hosts: tuple[str, ...]) -> None:
        """Writes the tokens and the host list."""
        tokens = Tokens.load(self.directory)
        for folder in ("agents", "logs", "job"):
            (self.directory / folder).mkdir(mode=0o700)
        for host in hosts:
            write_private(self.agent_token(host), tokens.agent(host) + "\n")
        write_private(self.launcher_token, tokens.launcher("dev") + "\n")
        write_private(self.viewer_token, tokens.viewer() + "\n")
        write_private(self.hosts_file, "".join(f"{host}\n" for host in hosts))


@contextmanager
def claimed(directory: Path) -> Iterator[DevWorkspace]:
    """Takes the directory, which only its owner may read, and removes what an earlier `dev` has left.

    Raises:
        DevUsageError: Another `dev` uses it, or it contains something else.
        OSError: It cannot be created or written.
    """
    if directory.exists() and not directory.is_dir():
        raise DevUsageError(f"{directory} is not a directory. Choose another one with --data-dir.")
    lock = directory / LOCK_FILE
    if directory.exists() and any(directory.iterdir()) and not lock.exists():
        raise DevUsageError(
            f"{directory} contains files that are not of `dev`. Choose another directory with --data-dir."
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"Another `dev` runs with {directory}. End it first, or choose another directory with --data-dir."
            raise DevUsageError(message) from error
        workspace = DevWorkspace(directory)
        workspace.clear()
        yield workspace


@dataclass(slots=True)
class SimulatedHost:
    """A host: its name, a node agent, and the file that announces its reclaim. `agent` is None while it is gone."""

    name: str
    grpc: str
    workspace: DevWorkspace
    agent: DevProcess | None = field(default=None)
    _uid: str = field(default="")
    _gone_at: float = field(default=0.0)

    def boot(self) -> None:
        """Starts the host as a new machine with the same name. No earlier announcement concerns it."""
        self.workspace.reclaim_file(self.name).unlink(missing_ok=True)
        self._uid = f"{self.name}-{uuid.uuid4()}"
        self.start_agent()

    def start_agent(self) -> None:
        """Starts the agent of the present machine."""
        settings = {
            "NODE_AGENT_NODE_NAME": self.name,
            "NODE_AGENT_NODE_UID": self._uid,
            "NODE_AGENT_SUPERVISOR": self.grpc,
            "NODE_AGENT_TOKEN_FILE": str(self.workspace.agent_token(self.name)),
            "NODE_AGENT_SOURCES": "file",
            "NODE_AGENT_FILE_PATH": str(self.workspace.reclaim_file(self.name)),
            "NODE_AGENT_PODS": "off",
            "NODE_AGENT_LOG_FORMAT": "console",
        }
        log = self.workspace.logs / f"agent-{self.name}.log"
        self.agent = start(f"The agent of {self.name}", [command("elastic-node-agent")], settings, log)

    def announce(self, lead_seconds: float) -> None:
        """Announces that the host is reclaimed in `lead_seconds`."""
        self._gone_at = time.time() + lead_seconds
        deadline = datetime.fromtimestamp(self._gone_at, UTC)
        # Renamed into place, so that the agent never reads half of it.
        draft = self.workspace.reclaim_file(self.name).with_suffix(".draft")
        draft.write_text(f"{deadline:%Y-%m-%dT%H:%M:%SZ}\n", encoding="ascii")
        draft.replace(self.workspace.reclaim_file(self.name))

    async def vanish(self) -> None:
        """Waits until the announced deadline, and kills the agent without a goodbye, as if the machine were gone."""
        await asyncio.sleep(max(0.0, self._gone_at - time.time()))
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.process.kill()
            await agent.ended()


@dataclass(slots=True, kw_only=True)
class DevScene:
    """The running processes of `dev`. `opened` creates it."""

    options: DevOptions
    workspace: DevWorkspace
    url: str
    backend: HttpBackend
    supervisor: DevProcess
    hosts: list[SimulatedHost]
    job: DevProcess | None = field(default=None)

    @property
    def is_job_done(self) -> bool:
        """Whether the job has ended successfully."""
        return self.job is not None and self.job.process.poll() == 0

    @property
    def was_job_stopped(self) -> bool:
        """Whether kubeai-run has ended because somebody asked for that, as with `job-supervisor stop`."""
        return self.job is not None and self.job.process.poll() == _STOPPED_CODE

    def children(self) -> Iterator[DevProcess]:
        yield self.supervisor
        yield from (host.agent for host in self.hosts if host.agent is not None)
        if self.job is not None:
            yield self.job

    def check(self) -> None:
        """Checks that every process runs that should, and starts killed agents again.

        Raises:
            ChildEnded: One does not run.
        """
        for host in self.hosts:
            # A signal has ended the agent, as the kernel does with an agent that is frozen.
            if host.agent is not None and (host.agent.process.poll() or 0) < 0:
                say(f"{host.agent.manner}. Starting it again.")
                host.start_agent()
        for child in self.children():
            if not (child is self.job and self.is_job_done):
                child.check()

    async def status(self) -> SeenStatus:
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
        own, files = self.options.command, self.workspace
        if own is None:
            return
        sample = (*_SAMPLE, "--checkpoint", str(files.checkpoint), "--progress", str(files.progress))
        arguments = [
            *(command("kubeai-run"), "--job", JOB, "--supervisor", self.url),
            *("--token-file", str(files.launcher_token)),
            *("--min-workers", str(self.options.min_workers), "--max-workers", str(len(self.options.hosts))),
            # All hosts are this machine: no port tells them apart.
            *("--hosts-file", str(files.hosts_file), "--port", "0"),
            *("--", *(own or sample)),
        ]
        # The output of the user's own job belongs on the terminal.
        self.job = start("kubeai-run", arguments, {}, None if own else files.logs / "job.log")

    async def close(self) -> None:
        """Ends everything against the flow: first the job, which saves, and last the supervisor."""
        if self.job is not None and self.job.running:
            say("Ending the job: rank 0 saves a checkpoint first.")
            await self.job.stop(_JOB_STOP_SECONDS)
        await stop_all((host.agent for host in self.hosts if host.agent is not None), _STOP_SECONDS)
        await self.supervisor.stop(_STOP_SECONDS)


@asynccontextmanager
async def opened(options: DevOptions, workspace: DevWorkspace) -> AsyncIterator[DevScene]:
    """Starts the supervisor and the hosts, and kills all processes at the end.

    Raises:
        DevUsageError: The SDK is not installed.
        ChildEnded: A process ended instead.
    """
    command("kubeai-run")
    workspace.prepare(options.hosts)
    supervisor, served = await _serving(workspace)
    try:
        address = SupervisorAddress(served.http)
        async with HttpBackend.open(address, address.ssl_context(), token_maker(workspace.directory)) as backend:
            hosts = [SimulatedHost(name, served.grpc, workspace) for name in options.hosts]
            scene = DevScene(
                options=options,
                workspace=workspace,
                url=served.http,
                backend=backend,
                supervisor=supervisor,
                hosts=hosts,
            )
            try:
                for host in hosts:
                    host.boot()
                yield scene
            finally:
                for child in scene.children():
                    child.process.kill()
    finally:
        with suppress(ProcessLookupError):
            supervisor.process.kill()


async def _serving(workspace: DevWorkspace) -> tuple[DevProcess, ServedEndpoints]:
    """Starts the supervisor, again if another program took a port in the meantime."""
    ports = _free_ports()
    while True:
        grpc, http = ports
        settings = {
            "JOB_SUPERVISOR_DATA_DIR": str(workspace.directory),
            "JOB_SUPERVISOR_GRPC_ADDRESS": f"127.0.0.1:{grpc}",
            "JOB_SUPERVISOR_HTTP_ADDRESS": f"127.0.0.1:{http}",
        }
        arguments = [command("elastic-job-supervisor"), "serve"]
        supervisor = start("The supervisor", arguments, settings, workspace.logs / "supervisor.log")
        try:
            while not serves(workspace.directory):
                supervisor.check()
                await asyncio.sleep(LOOK_SECONDS)
            return supervisor, endpoints(workspace.directory)
        except ChildEnded:
            before, ports = ports, _free_ports()
            if ports == before:
                raise
        except BaseException:
            supervisor.process.kill()
            raise


def _free_ports() -> tuple[int, int]:
    """Returns the usual ports of a supervisor; 0 stands for a port on which another program listens."""
    found = []
    for port, whose in ((GRPC_PORT, "agents"), (HTTP_PORT, "jobs, commands and the status page")):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                say(f"Another program uses port {port}: taking a free port for {whose}.")
                found.append(0)
    grpc, http = found
    return grpc, http
