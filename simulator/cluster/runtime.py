"""Runs the processes of all running pods, and reports the exit of launchers to the API server."""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from simulator.cloud.observer import observe
from simulator.cloud.process import CloudChild, end
from simulator.cluster import launchers
from simulator.cluster.identity import PodIdentity, show_annotations, write_identity
from simulator.cluster.objects import EXECS, Exec, ManifestConfigMap, RunPod
from simulator.cluster.paths import ClusterPaths
from simulator.cluster.truth import TruthLog
from simulator.et_operator.names import GROUP, GROUP_LABEL
from simulator.et_operator.objects import CONFIG_MAPS, PODS
from simulator.events import JobEventKind

log = structlog.get_logger()

EXCLUSIONS = "excluded_hosts"
"""The file beside the host list with the hosts that the supervisor's discovery script excludes."""

_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.2
# A launcher may be starting a process on a host that is just gone. That one is ended too.
_SWEEP_SECONDS = 3.0
_END_SECONDS = 5.0


@dataclass(slots=True)
class _RunningPod:
    """A pod that runs here. `lost` means that its node died, which is not reported to the API server."""

    pod: RunPod
    task: "asyncio.Task[None]"
    child: CloudChild | None = None
    lost: bool = False


class NodeRuntime:
    """Everything that runs on the nodes of a cluster, or of one namespace's jobs.

    Args:
        server: The cluster, with full access.
        root: An empty directory for files of pods and jobs, and the mark of all processes.
        identity: Given to the pods; None if they must not know a supervisor.
        namespace: The jobs' namespace; empty for all.
    """

    def __init__(self, server: ApiServer, root: Path, identity: PodIdentity | None = None, namespace: str = "") -> None:
        self.paths = ClusterPaths(root)
        self.truth = TruthLog(self.paths)
        self._server = server
        self._identity = identity
        selection = Selection(namespace=namespace, labels=f"{GROUP_LABEL}={GROUP}")
        self._pods = ResourceClient(server, PODS, lambda data: msgspec.json.decode(data, type=RunPod), selection)
        self._configs = ResourceClient(
            server, CONFIG_MAPS, lambda data: msgspec.json.decode(data, type=ManifestConfigMap)
        )
        self._execs = ResourceClient(server, EXECS, lambda data: msgspec.json.decode(data, type=Exec))
        clock = Clock()
        self._cache: Cache[RunPod] = Cache(PODS.plural, self._changed, Bulkhead(clock))
        self._reflector = Reflector(self._pods, self._cache, clock)
        self._running: dict[str, _RunningPod] = {}
        self._served: dict[str, Exec] = {}
        self._runs: Counter[ObjectKey] = Counter()
        self._dead: set[str] = set()
        self._children: set[CloudChild] = set()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run forever. No process is left at the end.

        Raises:
            ApiError: The pods cannot be read.
        """
        log.info("node-runtime.started", note="a stand-in: kwok's nodes run no containers")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._reflector.first()
                await self._reflector.run()
        finally:
            self._tasks = None
            for begun in list(self._running.values()):
                self._kill(begun)
            for child in self._children:
                await child.wait(_END_SECONDS)
            self.truth.close()

    def kill_node(self, node: str) -> None:
        """Kill a machine with everything on it. The cluster still has its pods."""
        self._dead.add(node)
        self.truth.node_gone(node)
        for begun in self._running.values():
            if begun.pod.spec.node_name == node:
                begun.lost = True
                self._kill(begun)

    def revive_node(self, node: str) -> None:
        """Start a machine with that name. Pods that were lost with the old one stay lost."""
        self._dead.discard(node)

    # Events.

    def _changed(self, before: RunPod | None, after: RunPod | None) -> None:
        running = after.metadata.uid if after is not None and after.runs else None
        for pod in (before, after):
            if pod is not None and pod.metadata.uid in self._running and pod.metadata.uid != running:
                if pod.is_launcher:
                    phase = "gone" if after is None else after.status.phase
                    log.info("node-runtime.launcher-taken", pod=pod.name, phase=phase)
                self._end(pod)
        if after is None or not after.runs or self._tasks is None:
            return
        if after.metadata.uid in self._running:
            if before is None or before.metadata.annotations != after.metadata.annotations:
                show_annotations(after, self.paths.home(after))
        elif after.spec.node_name not in self._dead:
            self._running[after.metadata.uid] = _RunningPod(after, self._start(self._start_pod(after)))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        if self._tasks is None:
            coroutine.close()
            raise asyncio.CancelledError
        return self._tasks.create_task(coroutine)

    # A pod's life.

    async def _start_pod(self, pod: RunPod) -> None:
        while True:
            try:
                await self._prepare(pod)
                break
            except ApiError as error:
                # A dependency may be missing still. Like a kubelet, retry until the pod is gone.
                log.warning("node-runtime.not-started", pod=pod.name, why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        if pod.is_launcher:
            await self._launch(pod)

    async def _prepare(self, pod: RunPod) -> None:
        home = self.paths.home(pod)
        home.kubeai.mkdir(parents=True, exist_ok=True)
        show_annotations(pod, home)
        if self._identity is not None:
            await write_identity(self._server, pod, home, self._identity)
        if pod.is_launcher:
            config = await self._configs.get(ObjectKey(pod.metadata.namespace, f"{pod.job}-config"))
            launchers.initialise(home, config)
            await self._serve_commands(pod)
        self.truth.pod_started(pod)
        link = self.paths.host(pod)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(home.root)

    async def _serve_commands(self, pod: RunPod) -> None:
        envs = [{"name": name, "value": value} for name, value in launchers.variables(self.paths.home(pod)).items()]
        spec = {"execs": [{"local": {"envs": envs}}]}
        try:
            served = await self._execs.create(pod.metadata.key, {"spec": spec})
        except ConflictError:
            served = await self._execs.replace(await self._execs.get(pod.metadata.key), "spec", spec)
        self._served[pod.metadata.uid] = served

    async def _launch(self, pod: RunPod) -> None:
        job = ObjectKey(pod.metadata.namespace, pod.job)
        self._runs[job] += 1
        child = launchers.start(pod, self.paths, self._runs[job])
        begun = self._running.get(pod.metadata.uid)
        if begun is None:
            await child.kill()
            return
        begun.child = child
        self._children.add(child)
        code = await self._watched(pod, child)
        self._children.discard(child)
        if not begun.lost:
            await self._report_exit(pod, child, code)

    async def _watched(self, pod: RunPod, child: CloudChild) -> int:
        """Return the exit code. Meanwhile, changes of the exclusions are recorded."""
        observer = asyncio.create_task(observe(self.paths.home(pod).edl / EXCLUSIONS, self.truth.log(pod)))
        # The list of a new launcher excludes no host.
        self.truth.log(pod).write(JobEventKind.EXCLUSIONS_CHANGED, hosts=[])
        try:
            while (code := child.exit_code) is None:  # noqa: ASYNC110 - there is no event for a process's exit
                await asyncio.sleep(_POLL_SECONDS)
            return code
        finally:
            observer.cancel()

    async def _report_exit(self, pod: RunPod, child: CloudChild, code: int) -> None:
        log.info("node-runtime.launcher-ended", pod=pod.name, code=code, said=child.tail() if code else None)
        content = {"status": _terminated(pod, 128 - code if code < 0 else code)}
        while True:
            try:
                await self._pods.merge(pod, content, "status")
            except ApiUnavailableError:
                await asyncio.sleep(_RETRY_SECONDS)
            except (NotFoundError, ConflictError):
                return
            else:
                return

    def _end(self, pod: RunPod) -> None:
        begun = self._running.pop(pod.metadata.uid)
        begun.lost = True
        self._kill(begun)
        if begun.child is None:
            begun.task.cancel()
        served = self._served.pop(pod.metadata.uid, None)
        if served is not None and self._tasks is not None:
            self._start(self._serve_no_commands(served))

    async def _serve_no_commands(self, served: Exec) -> None:
        # The uid precondition protects the Exec of the next launcher, which has the same name. A leftover is harmless.
        with contextlib.suppress(ApiError):
            await self._execs.delete(served)

    # Ends.

    def _kill(self, begun: _RunningPod) -> None:
        pod, home = begun.pod, self.paths.home(begun.pod)
        self.truth.pod_ended(pod)
        link = self.paths.host(pod)
        if link.is_symlink() and link.readlink() == home.root:
            link.unlink()
        if begun.child is not None and begun.child.running:
            # The whole container, because a shell may run the launcher.
            os.killpg(begun.child.pid, signal.SIGKILL)
        self._end_processes(pod)
        if pod.is_launcher:
            home.remove()
        elif self._tasks is not None:
            self._start(self._sweep(pod))

    async def _sweep(self, pod: RunPod) -> None:
        until = time.monotonic() + _SWEEP_SECONDS
        while time.monotonic() < until and not self.paths.host(pod).exists():
            self._end_processes(pod)
            await asyncio.sleep(_POLL_SECONDS)
        self.paths.home(pod).remove()

    def _end_processes(self, pod: RunPod) -> None:
        for begun in self._running.values():
            same = (begun.pod.metadata.namespace, begun.pod.job) == (pod.metadata.namespace, pod.job)
            if begun.pod.is_launcher and same:
                for pid in self.paths.home(begun.pod).pids(pod.name):
                    end(pid, self.paths.root)


def _terminated(pod: RunPod, code: int) -> dict[str, Any]:
    """Return a pod status as a kubelet writes it when the container has ended."""
    container = pod.spec.containers[0]
    phase, reason = ("Succeeded", "Completed") if code == 0 else ("Failed", "Error")
    finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    terminated = {"exitCode": code, "reason": reason, "startedAt": finished, "finishedAt": finished}
    status = {"name": container.name, "image": container.image, "imageID": "", "ready": False, "restartCount": 0}
    return {"phase": phase, "containerStatuses": [{**status, "state": {"terminated": terminated}}]}
