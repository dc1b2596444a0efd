"""The stand-in: one task per job, which reads the caches, waits as long as the real one would, and acts."""

import asyncio
import shlex
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, UnreadableError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer, Call
from servicekit.reconcile import Wakeup
from simulator.et_operator import manifests
from simulator.et_operator.cache import ObjectCaches, WatchedKind
from simulator.et_operator.names import CONTAINER, EDL, TrainingJobPhase, index_of, worker_name
from simulator.et_operator.objects import (
    CONFIG_MAPS,
    OperatedTrainingJob,
    OperatorConfigMap,
    OperatorPod,
    Scale,
    TrainingJobStatus,
)
from simulator.et_operator.reconcile import (
    Action,
    MakeConfig,
    MakeLauncher,
    MakeWorker,
    OperatedJob,
    ReconcileOutcome,
    Remove,
    WriteHosts,
    reconcile,
)
from simulator.et_operator.scaling import (
    OperatorCrashedError,
    Scaling,
    failed,
    next_scale_out,
    scale_in,
    scale_out,
    unscaled,
)
from simulator.et_operator.settings import AS_OBSERVED, Flaw, OperatorSettings

log = structlog.get_logger()


class EtOperator:
    """Runs the TrainingJobs of a cluster like et-operator.

    Args:
        server: The cluster, with full access.
        settings: Speed and flaws.
    """

    def __init__(self, server: ApiServer, settings: OperatorSettings = AS_OBSERVED) -> None:
        self._server = server
        self._settings = settings
        self._cache = ObjectCaches(
            server,
            self._wake,
            self._on_pod_deleted,
            across=Flaw.ALL_NAMESPACES in settings.flaws,
            namespace=settings.namespace,
        )
        self._configs = ResourceClient(
            server, CONFIG_MAPS, lambda data: msgspec.json.decode(data, type=OperatorConfigMap)
        )
        self._wakeups: dict[ObjectKey, Wakeup] = {}
        self._hosts: dict[str, frozenset[str]] = {}
        """Hosts in the host list, by the launcher's uid."""
        self._deleted: dict[ObjectKey, dict[str, float]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run forever.

        Raises:
            NotFoundError: The CRDs are missing; the real operator ends then, too.
            OperatorCrashedError: A ScaleIn crashed the operator.
        """
        log.info("et-operator.started", note="a stand-in, not et-operator itself")
        for reflector in self._cache.reflectors:
            await reflector.first()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for reflector in self._cache.reflectors:
                    tasks.create_task(reflector.run())
                for job in list(self._cache.jobs.cache.objects.values()):
                    self._on_start(job)
        except* OperatorCrashedError as errors:
            raise OperatorCrashedError(str(errors.exceptions[0])) from errors
        finally:
            self._tasks = None

    # Events.

    def _on_start(self, job: OperatedTrainingJob) -> None:
        self._wake(job.metadata.key)
        if Flaw.EXTRA_WORKER_AT_START in self._settings.flaws and job.status.phase == TrainingJobPhase.RUNNING:
            last = max(map(index_of, job.status.target_workers or ()), default=-1)
            self._start(self._make_worker(job, worker_name(job.metadata.name, last + 1)))

    def _wake(self, job: ObjectKey) -> None:
        # `run` wakes all jobs when it starts.
        if self._tasks is None:
            return
        if job not in self._wakeups and job in self._cache.jobs.cache.objects:
            self._wakeups[job] = Wakeup()
            self._start(self._serve(job))
        elif job in self._wakeups:
            self._wakeups[job].set()

    def _on_pod_deleted(self, pod: OperatorPod) -> None:
        if not pod.is_launcher:
            self._deleted.setdefault(pod.job, {})[pod.name] = time.monotonic()
            asyncio.get_running_loop().call_later(self._settings.pace.forget, self._wake, pod.job)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._tasks is not None:
            self._tasks.create_task(coroutine)
        else:
            coroutine.close()

    # One job.

    async def _serve(self, key: ObjectKey) -> None:
        waited = ""
        wakeup = self._wakeups[key]
        while (job := self._cache.jobs.cache.objects.get(key)) is not None:
            snapshot = self._snapshot(job)
            outcome = reconcile(snapshot, self._settings, _now())
            try:
                if outcome is not None and outcome.delay and outcome.reason != waited:
                    await asyncio.sleep(outcome.delay)
                    waited = outcome.reason
                elif outcome is not None:
                    waited = ""
                    await self._do(snapshot, outcome)
                elif not await self._scale(snapshot):
                    waited = ""
                    await wakeup.wait(self._settings.pace.poll if job.status.current_scaler else None)
            except (NotFoundError, ConflictError) as error:
                log.info("et-operator.again", job=key, why=str(error))
                await wakeup.wait(self._settings.pace.retry)
            except ApiError as error:
                log.warning("et-operator.failed", job=key, why=str(error))
                await asyncio.sleep(self._settings.pace.retry)
        del self._wakeups[key]
        self._deleted.pop(key, None)

    def _snapshot(self, job: OperatedTrainingJob) -> OperatedJob:
        pods = list(self._cache.pods_of(job.metadata.key))
        launcher = next((pod for pod in pods if pod.is_launcher), None)
        oldest = time.monotonic() - self._settings.pace.forget
        deleted = self._deleted.get(job.metadata.key, {})
        return OperatedJob(
            job=job,
            workers=tuple(pod for pod in pods if not pod.is_launcher),
            launcher=launcher,
            hosts=self._hosts.get(launcher.metadata.uid) if launcher else None,
            deleted=frozenset(name for name, when in deleted.items() if when > oldest),
        )

    async def _do(self, snapshot: OperatedJob, outcome: ReconcileOutcome) -> None:
        log.info("et-operator.step", job=snapshot.job.metadata.key, reason=outcome.reason, actions=len(outcome.actions))
        for action in outcome.actions:
            await self._carry_out(snapshot, action)
        # A status that somebody else writes meanwhile is overwritten, as with the real operator.
        await asyncio.sleep(self._settings.pace.write)
        await self._write_status(snapshot.job, outcome.status)

    async def _write_status(self, job: OperatedTrainingJob, status: TrainingJobStatus) -> None:
        if status != job.status:
            content = {"status": msgspec.to_builtins(status)}
            self._cache.jobs.cache.record_write(await self._cache.jobs.client.merge(job, content, "status"))

    # Actions.

    async def _carry_out(self, snapshot: OperatedJob, action: Action) -> None:
        job = snapshot.job
        match action:
            case MakeConfig(hosts):
                await self._make_config(job, hosts)
            case MakeWorker(name, for_scale_out):
                await self._make_worker(job, name, for_scale_out)
            case MakeLauncher(hosts):
                name, metadata = manifests.launcher_name(job), manifests.launcher_metadata(job)
                launcher = await self._make_pod(job, name, manifests.launcher_spec(job), metadata)
                self._hosts[launcher.metadata.uid] = hosts
            case Remove(pod):
                await self._remove(pod)
            case WriteHosts(launcher, hosts):
                await self._run(launcher, _writing(manifests.host_list(job, hosts)))
                self._hosts[launcher.metadata.uid] = hosts

    async def _make_config(self, job: OperatedTrainingJob, hosts: tuple[str, ...]) -> None:
        key = ObjectKey(job.metadata.namespace, manifests.config_name(job))
        content = {"data": manifests.config_data(job, hosts)}
        try:
            await self._configs.create(key, content, **manifests.config_metadata(job))
        except ConflictError:
            log.info("et-operator.config-kept", config=key)

    async def _make_worker(self, job: OperatedTrainingJob, name: str, for_scale_out: str = "") -> None:
        metadata = manifests.worker_metadata(job, name, for_scale_out)
        await self._make_pod(job, name, manifests.worker_spec(job), metadata)

    async def _make_pod(
        self, job: OperatedTrainingJob, name: str, spec: manifests.Manifest, metadata: manifests.Manifest
    ) -> OperatorPod:
        key = ObjectKey(job.metadata.namespace, name)
        pod = await self._cache.pods.client.create(key, {"spec": spec}, **metadata)
        self._cache.pods.cache.record_write(pod)
        return pod

    async def _remove(self, pod: OperatorPod) -> None:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.name}"
        body = msgspec.json.encode({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}})
        try:
            await self._server.request(Call(method="DELETE", path=path, body=body))
        except (NotFoundError, ConflictError):
            log.info("et-operator.pod-gone-already", pod=pod.name)
        self._cache.pods.cache.record_deletion(pod)

    async def _run(self, launcher: OperatorPod, script: str) -> None:
        ran = await execute(self._server, launcher.metadata.key, CONTAINER, ["sh", "-c", script])
        if ran.code:
            raise UnreadableError(f"a command in {launcher.name} ended with {ran.code}: {ran.output}")

    # Scaling.

    async def _scale(self, snapshot: OperatedJob) -> bool:
        """Make one step of one of the job's scalings. Returns whether there was one."""
        job = snapshot.job.status
        if job.phase not in (TrainingJobPhase.RUNNING, TrainingJobPhase.SCALING):
            return False
        if job.phase == TrainingJobPhase.RUNNING or not job.current_scaler:
            for scale in list(self._cache.scale_ins.cache.objects.values()):
                if scale.job == snapshot.job.metadata.key and (scaling := scale_in(snapshot, scale)) is not None:
                    await self._do_scaling(snapshot, self._cache.scale_ins, scale, scaling)
                    return True
        return await self._scale_out(snapshot)

    async def _scale_out(self, snapshot: OperatedJob) -> bool:
        kind, job = self._cache.scale_outs, snapshot.job.status
        scale = next_scale_out(snapshot, kind.cache.objects.values())
        if scale is None:
            if job.phase != TrainingJobPhase.SCALING or not job.current_scaler:
                return False
            # It was deleted, or its end was not recorded: its workers stay, but are no targets.
            await self._write_status(snapshot.job, unscaled(job))
            return True
        scaling = scale_out(snapshot, scale, time.time())
        if scaling is None:
            return False
        await self._do_scaling(snapshot, kind, scale, await self._tried(snapshot, scale, scaling))
        return True

    async def _tried(self, snapshot: OperatedJob, scale: Scale, scaling: Scaling) -> Scaling:
        if not scaling.listed:
            return scaling
        script = scaling.script or _writing(manifests.host_list(snapshot.job, scaling.listed))
        try:
            if snapshot.launcher is None:
                return failed(snapshot, scale)
            await self._run(snapshot.launcher, script)
        except ApiError:
            return failed(snapshot, scale)
        return scaling

    async def _do_scaling(
        self, snapshot: OperatedJob, kind: WatchedKind[Scale], scale: Scale, scaling: Scaling
    ) -> None:
        log.info(
            "et-operator.scale", job=snapshot.job.metadata.key, scale=scale.metadata.name, phase=scaling.status.phase
        )
        for action in scaling.actions:
            await self._carry_out(snapshot, action)
        content = {"status": msgspec.to_builtins(scaling.status)}
        kind.cache.record_write(await kind.client.merge(scale, content, "status"))
        await self._write_status(snapshot.job, scaling.job)


def _writing(hosts: str) -> str:
    # Where containers are processes of this machine, /etc/edl is another directory.
    return f"printf %s {shlex.quote(hosts)} > ${{EDL:-{EDL}}}/hostfile"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
