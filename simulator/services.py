"""The product's processes in a world: the supervisor, the agents, and a job under kubeai-run.

All are started as a user would start them, through their commands and documented settings.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from simulator.certificates import SimulatedAuthority
from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud
from simulator.cloud.nodes import AgentCommand
from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import CloudChild, TooLate, environment, script, spawn
from simulator.cloud.trace import Node
from simulator.events import EventLog, JobEvent, read
from supervisor.identity.tokens import Tokens

START_SECONDS = 60.0
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ServiceEndpoints:
    """The supervisor's addresses: `grpc` as host:port, `http` as a URL."""

    grpc: str
    http: str


class SupervisorProcess:
    """One `elastic-job-supervisor serve`. A restart uses the same ports and data.

    Args:
        paths: The world's paths.
        authority: Signs its certificate; None for a world without TLS.
        settings: Extra variables for each start.
    """

    def __init__(
        self, paths: CloudPaths, authority: SimulatedAuthority | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self._places = paths
        self.authority = authority
        self._extra_settings = settings or {}
        self._file = paths.supervisor / "endpoints.json"
        self._endpoints: ServiceEndpoints | None = None
        self._child: CloudChild | None = None

    @property
    def endpoints(self) -> ServiceEndpoints:
        """Its addresses.

        Raises:
            RuntimeError: It was never started.
        """
        if self._endpoints is None:
            raise RuntimeError("the supervisor was never started")
        return self._endpoints

    @property
    def child(self) -> CloudChild:
        """Its present process.

        Raises:
            RuntimeError: It was never started.
        """
        if self._child is None:
            raise RuntimeError("the supervisor was never started")
        return self._child

    async def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start or restart it and return once it serves.

        Args:
            settings: Extra variables for this start only.

        Raises:
            ProcessEnded: It ended instead.
            TooLate: It does not serve after a minute.
        """
        self._file.unlink(missing_ok=True)
        command = [script("elastic-job-supervisor"), "serve"]
        env = environment(self._places.root, {**self._settings(), **(settings or {})})
        self._child = spawn("supervisor", command, env, self._places.log("supervisor"))
        deadline = time.monotonic() + START_SECONDS
        while not self._file.exists():
            self._child.check()
            if time.monotonic() > deadline:
                raise TooLate(f"the supervisor does not serve after {START_SECONDS:g} s:\n{self._child.tail()}")
            await asyncio.sleep(POLL_SECONDS)
        self._endpoints = msgspec.json.decode(self._file.read_bytes(), type=ServiceEndpoints)

    async def kill(self) -> None:
        await self.child.kill()

    async def stop(self) -> float:
        """Stop it with SIGTERM and return the seconds that took, or 0 if it was not running."""
        return await self._child.stop() if self._child is not None and self._child.running else 0.0

    def tokens(self) -> Tokens:
        """Return the signer of its tokens. It must have been started once."""
        return Tokens.load(self._places.supervisor)

    def _settings(self) -> dict[str, str]:
        known = self._endpoints
        return {
            **self._extra_settings,
            **self._tls(),
            "JOB_SUPERVISOR_DATA_DIR": str(self._places.supervisor),
            "JOB_SUPERVISOR_GRPC_ADDRESS": known.grpc if known else "127.0.0.1:0",
            "JOB_SUPERVISOR_HTTP_ADDRESS": known.http.partition("://")[2] if known else "127.0.0.1:0",
        }

    def _tls(self) -> dict[str, str]:
        if self.authority is None:
            return {}
        return {
            "JOB_SUPERVISOR_TLS_CERT_FILE": str(self.authority.cert_file),
            "JOB_SUPERVISOR_TLS_KEY_FILE": str(self.authority.key_file),
            "JOB_SUPERVISOR_TLS_RELOAD_SECONDS": "0.1",
        }


def agent_command(
    node: Node,
    supervisor: SupervisorProcess,
    metadata_url: str,
    paths: CloudPaths,
    cloud: SimulatedCloud = SimulatedCloud.ALIYUN,
) -> AgentCommand:
    """Return the command of a node's agent, which has its own token."""
    token = _write_token(paths.token(f"agent-{node}"), supervisor.tokens().agent(node))
    settings = {
        "NODE_AGENT_NODE_NAME": node,
        "NODE_AGENT_SUPERVISOR": supervisor.endpoints.grpc,
        "NODE_AGENT_TOKEN_FILE": str(token),
        METADATA_URLS[cloud]: metadata_url,
        "NODE_AGENT_SOURCES": cloud.value,
        "NODE_AGENT_PROBE_ADDRESS": "",
    }
    if supervisor.authority is not None:
        settings["NODE_AGENT_CA_FILE"] = str(supervisor.authority.ca_file)
    return AgentCommand([script("elastic-node-agent")], settings)


@dataclass(frozen=True, slots=True)
class ServedJobPlan:
    """A job as its user would describe it.

    Attributes:
        min_workers: Minimum number of hosts.
        max_workers: Maximum number of hosts.
        name: Its name.
        steps: Number of training steps.
        step_seconds: Minimum duration of a step.
        seed: Seed of the data and the parameters.
        worker_multiple: Every size of the job is a multiple of it.
        agrees: All ranks stop after one agreed step, and each of them saves.
        run_arguments: Extra options for kubeai-run.
        launcher_arguments: Extra options for the launcher.
        job_arguments: Extra options for the training script.
    """

    min_workers: int
    max_workers: int
    name: str = "demo"
    steps: int = 100
    step_seconds: float = 0.1
    seed: int = 1
    worker_multiple: int = 1
    agrees: bool = False
    run_arguments: tuple[str, ...] = ()
    launcher_arguments: tuple[str, ...] = ()
    job_arguments: tuple[str, ...] = ()

    def command(self, paths: CloudPaths, supervisor_url: str, token: Path) -> list[str]:
        """Return the whole command line: kubeai-run, the launcher, the training script."""
        return [*self._run(paths, supervisor_url, token), "--", *self._launcher(), "--", *self._script(paths)]

    def _run(self, paths: CloudPaths, supervisor_url: str, token: Path) -> Iterator[str]:
        yield script("kubeai-run")
        yield from ("--job", self.name, "--framework", "horovod")
        yield from ("--min-workers", str(self.min_workers), "--max-workers", str(self.max_workers))
        yield from ("--worker-multiple", str(self.worker_multiple))
        # All nodes are this machine, so no port distinguishes them.
        yield from ("--hosts-file", str(paths.hosts), "--port", "0")
        yield from ("--supervisor", supervisor_url, "--token-file", str(token))
        yield from ("--directory", str(paths.job(self.name) / "kubeai"))
        yield from self.run_arguments

    def _launcher(self) -> Iterator[str]:
        yield from (sys.executable, "-m", "simulator.elastic.launcher")
        yield from ("--min-workers", str(self.min_workers), "--max-workers", str(self.max_workers))
        # kubeai-run replaces this with the number of granted hosts.
        yield from ("--start-workers", "{workers}")
        yield from ("--discovery", script("kubeai-discover-hosts"), "--discovery-seconds", "1.0")
        yield from self.launcher_arguments

    def _script(self, paths: CloudPaths) -> Iterator[str]:
        yield from (sys.executable, "-m", "simulator.job")
        yield from ("--steps", str(self.steps), "--step-seconds", str(self.step_seconds), "--seed", str(self.seed))
        yield from ("--checkpoint", str(paths.job(self.name) / "checkpoint"))
        yield from ("--agree",) if self.agrees else ()
        yield from self.job_arguments


class JobProcess:
    def __init__(self, plan: ServedJobPlan, child: CloudChild, paths: CloudPaths) -> None:
        self.plan = plan
        self.child = child
        self._home = paths.job(plan.name)
        self._events = self._home / "events"

    @property
    def exclusions(self) -> Path:
        """The exclusions file that the discovery script reads."""
        return self._home / "kubeai" / "exclusions"

    def exclusions_now(self) -> tuple[str, ...]:
        return tuple(self.exclusions.read_text(encoding="utf-8").split())

    def events(self) -> list[JobEvent]:
        return read(self._events)

    def log(self, name: str) -> EventLog:
        return EventLog(self._events, name)

    async def wait(self, seconds: float) -> int:
        """Wait for the job's end and return kubeai-run's exit code.

        Raises:
            TooLate: It still runs after `seconds`.
        """
        return await self.child.wait(seconds)


def start_job(
    plan: ServedJobPlan, supervisor: SupervisorProcess, paths: CloudPaths, variables: Mapping[str, str]
) -> JobProcess:
    """Start a job as its user would. `variables` are added to its environment."""
    home = paths.job(plan.name)
    (home / "kubeai").mkdir(parents=True, exist_ok=True, mode=0o700)
    token = _write_token(paths.token(f"launcher-{plan.name}"), supervisor.tokens().launcher(plan.name))
    if supervisor.authority is not None:
        plan = replace(plan, run_arguments=("--ca-file", str(supervisor.authority.ca_file), *plan.run_arguments))
    command = plan.command(paths, supervisor.endpoints.http, token)
    ours = {"SIM_EVENTS": str(home / "events"), "SIM_STATE": str(paths.state)}
    env = environment(paths.root, {**variables, **ours})
    return JobProcess(plan, spawn(f"job {plan.name}", command, env, paths.log(f"job-{plan.name}")), paths)


def _write_token(path: Path, token: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(token, encoding="utf-8")
    path.chmod(0o600)
    return path
