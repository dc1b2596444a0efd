"""Carries out what `reconcile.py` decides, one job after another as they change."""

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from msgspec.structs import replace

from servicekit.bounds import one_line, unix_seconds
from servicekit.bulkhead import Bulkhead
from servicekit.faults import Fault, RetryPolicy
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import KeyedWorkQueue
from trainingjob_operator import manifests
from trainingjob_operator.api import (
    CONFIG_MAPS,
    HOSTS_ANNOTATION,
    SECRETS,
    TRAINING_JOBS,
    Condition,
    ConfigMap,
    JobStatus,
    Named,
    Pod,
    Scale,
    ScaleStatus,
    TrainingJob,
)
from trainingjob_operator.caches import JobCaches
from trainingjob_operator.changes import (
    Change,
    CreateKeys,
    CreateLauncher,
    CreateService,
    CreateWorker,
    DeletePod,
    DeleteService,
    RunScript,
    WriteConfig,
    WriteGroup,
    WriteHosts,
    WriteScale,
    WriteStatus,
)
from trainingjob_operator.groups import Gang, GangScheduler
from trainingjob_operator.metrics import OperatorMetrics
from trainingjob_operator.reconcile import SeenJob, only_tells, reconcile, told_later
from trainingjob_operator.scaling import failed_scale

_FIRST_TELL, _MAX_TELL = 1.0, 30.0
"""Seconds from a write of a status to one that only tells how far the pods have come, twice as many after each of
these: a start would be one write for each pod otherwise, the more of them the slower it is."""

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 10.0

_JOBLESS_SECONDS = 30.0
"""How old a ScaleIn or ScaleOut has to be before the absence of its job is believed."""

_LEFT_SECONDS, _KEYS_SECONDS = 60.0, 5.0
"""So long after the creation of a job, a deleted one of its name may have left keys that are still to be deleted; and
how often they are looked for. Whether they are its own cannot be seen without the right to read all Secrets."""

_BLOCKED = "Blocked"

_SCRIPTS_AT_ONCE = 8
"""Scripts that run for minutes may not take all of the 32 requests that the operator makes at once."""

_SSH_CONFIG = b"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
"""Workers come and go under addresses that were others' before; the network of the job's pods is what is trusted."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """The namespace of the jobs, empty for all, and the gang scheduler."""

    namespace: str = ""
    gang: Gang = Gang.NONE


@dataclass(slots=True)
class _KnownJob:
    """What this process remembers of a job, so that it does not ask the API server each time.

    Attributes:
        keys_due: When keys that somebody else has created are looked for again, as long as `has_keys` is false (Unix
            seconds).
        gang: The least number of workers in its PodGroup; -1 before it was written.
        tell_at: Before this instant no status is written that only tells how far the pods have come (Unix seconds).
        tell_pause: Seconds from its last status until then.
    """

    uid: str
    has_keys: bool = False
    keys_due: float = 0.0
    gang: int = -1
    tell_at: float = 0.0
    tell_pause: float = _FIRST_TELL

    def note_status(self, now: float, *, tells: bool) -> None:
        """Notes that its status was written, only to tell how far the pods have come or for more."""
        self.tell_pause = min(2 * self.tell_pause, _MAX_TELL) if tells else _FIRST_TELL
        self.tell_at = now + self.tell_pause


class Controller:
    """Runs the TrainingJobs of a cluster: `run` is its root task.

    Args:
        server: The cluster. Its guard refuses writes while this process may not act.
        clock: The API server's, by which its objects name instants.
        bulkhead: Keeps what one job raises from the others.
        options: The namespace of the jobs and the gang scheduler.
        metrics: Counts what is done.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: ClusterClock,
        bulkhead: Bulkhead,
        options: ControllerOptions,
        metrics: OperatorMetrics,
    ) -> None:
        self._server, self._clock, self._metrics = server, clock, metrics
        self._gang = None if options.gang is Gang.NONE else GangScheduler(server, options.gang)
        fault = Fault("jobs", clock.own)
        retry = RetryPolicy(errors=ApiError, fault=fault, first_seconds=_FIRST_PAUSE, max_seconds=_MAX_PAUSE)
        queue: KeyedWorkQueue[ObjectKey] = KeyedWorkQueue("trainingjob", self._reconcile, bulkhead, retry)
        self.run = queue.run
        self.caches = JobCaches(server, clock.own, bulkhead, options.namespace, queue.add)
        self._config_maps = ResourceClient(server, CONFIG_MAPS, partial(msgspec.json.decode, type=ConfigMap))
        self._secrets = ResourceClient(server, SECRETS, partial(msgspec.json.decode, type=Named))
        self._scripts = asyncio.Semaphore(_SCRIPTS_AT_ONCE)
        self._known: dict[ObjectKey, _KnownJob] = {}

    # One job.

    async def _reconcile(self, key: ObjectKey) -> float | None:
        job, now = self.caches.jobs.cache.objects.get(key), self._clock.now()
        if job is None:
            self._known.pop(key, None)
            return await self._close_jobless(key, now)
        known = self._known.get(key)
        if known is None or known.uid != job.metadata.uid:
            known = self._known[key] = _KnownJob(job.metadata.uid)
        begun = time.perf_counter()
        outcome = reconcile(self._seen(job, known, now), now)
        self._metrics.on_reconciled(time.perf_counter() - begun)
        if now < known.tell_at:
            outcome = told_later(job.status, outcome, known.tell_at)
        try:
            for change in outcome.changes:
                job = await self._carry_out(job, known, change)
        except RefusedError as error:
            await self._block(job, str(error))
            raise
        except manifests.TemplateError as error:
            await self._block(job, str(error))
            return None  # A change of the job adds it again.
        await self._unblock(job)
        dues = [] if outcome.again_at is None else [outcome.again_at]
        if not known.has_keys and known.keys_due > now:
            dues.append(known.keys_due)
        return max(0.0, min(dues) - self._clock.now()) if dues else None

    def _seen(self, job: TrainingJob, known: _KnownJob, now: float) -> SeenJob:
        meta = job.metadata
        scales = [
            scale
            for scale in self.caches.scales_of(meta.key)
            if all(one.uid == meta.uid for one in scale.metadata.owner_references if one.kind == TRAINING_JOBS.kind)
        ]
        return SeenJob(
            job,
            pods=self.caches.pods_of(job),
            services=self.caches.services_of(meta.key),
            has_keys=known.has_keys or now < known.keys_due,
            scales=tuple(scales),
            gang=None if self._gang is None else known.gang,
        )

    async def _close_jobless(self, key: ObjectKey, now: float) -> float | None:
        """Fails the scalings of a job that does not exist, once it is certain that it is not only late."""
        scales = self.caches.scales_of(key)
        dues = [(unix_seconds(one.metadata.creation_timestamp) or now) + _JOBLESS_SECONDS for one in scales]
        for scale, due in zip(scales, dues, strict=True):
            if due <= now:
                failed = failed_scale(scale, f"There is no TrainingJob {key.name} in this namespace.")
                await self._write_scale(scale, failed.status)
        return min((due - now for due in dues if due > now), default=None)

    async def _carry_out(self, job: TrainingJob, known: _KnownJob, change: Change) -> TrainingJob:
        """Makes one change; returns the job as it is then."""
        self._metrics.on_change(type(change).__name__)
        meta = job.metadata
        match change:
            case WriteStatus(status):
                tells = only_tells(job.status, status)
                job = await self._write_status(job, status)
                known.note_status(self._clock.now(), tells=tells)
            case WriteScale(scale, scale_status):
                await self._adopt(job, scale)
                await self._write_scale(scale, scale_status)
            case DeletePod(pod):
                with suppress(NotFoundError, ConflictError):
                    await self.caches.pods.client.delete_unconditionally(pod)
            case DeleteService(name):
                if (service := self.caches.services.cache.objects.get(ObjectKey(meta.namespace, name))) is not None:
                    with suppress(NotFoundError, ConflictError):
                        await self.caches.services.client.delete_unconditionally(service)
            case WriteHosts(launcher, text, by_command):
                if by_command:
                    await self._run(job, launcher, [*manifests.HOSTFILE_COMMAND, text])
                annotations = {HOSTS_ANNOTATION: text}
                changed = await self.caches.pods.client.merge(launcher, {}, metadata={"annotations": annotations})
                self.caches.pods.cache.record_write(changed)
            case RunScript():
                await self._run_script(job, change)
            case _:
                await self._create(job, known, change)
        return job

    async def _create(self, job: TrainingJob, known: _KnownJob, change: Change) -> None:
        match change:
            case CreateKeys():
                await self._create_keys(job, known)
            case CreateService(pod):
                await self._create_service(job, pod)
            case WriteConfig(hosts):
                await self._write_config(job, manifests.config_data(job, hosts))
            case WriteGroup(members):
                if self._gang is not None:
                    await self._gang.write(job, members)
                known.gang = members
            case CreateWorker(name, run, scale_out):
                metadata = manifests.worker_metadata(job, name, run, scale_out)
                await self._create_pod(job, name, manifests.worker_spec(job), metadata)
            case CreateLauncher(run, hosts):
                metadata = manifests.launcher_metadata(job, run, hosts)
                name = manifests.launcher_name(job)
                await self._create_pod(job, name, manifests.launcher_spec(job), metadata)

    async def _write_status(self, job: TrainingJob, status: JobStatus) -> TrainingJob:
        if status.phase != job.status.phase:
            _log.info("trainingjob.phase", job=job.metadata.key, phase=status.phase, before=job.status.phase)
        written = await self.caches.jobs.client.replace(job, "status", msgspec.to_builtins(status))
        self.caches.jobs.cache.record_write(written)
        return written

    async def _block(self, job: TrainingJob, reason: str) -> None:
        """Says on the job why it cannot go on: nothing of it may fail in silence."""
        blocked = Condition(_BLOCKED, "True", "Refused", one_line(reason))
        conditions = job.status.conditions or []
        if blocked not in conditions:
            _log.warning("trainingjob.blocked", job=job.metadata.key, reason=blocked.message)
            others = [one for one in conditions if one.type != _BLOCKED]
            await self._write_status(job, replace(job.status, conditions=[*others, blocked]))

    async def _unblock(self, job: TrainingJob) -> None:
        """Takes back what `_block` said: all changes have been made."""
        others = [one for one in job.status.conditions or [] if one.type != _BLOCKED]
        if others != (job.status.conditions or []):
            await self._write_status(job, replace(job.status, conditions=others))

    async def _adopt(self, job: TrainingJob, scale: Scale) -> None:
        if not any(owner.uid == job.metadata.uid for owner in scale.metadata.owner_references):
            kind = self.caches.kind_of(scale)
            owners = [msgspec.to_builtins(owner) for owner in scale.metadata.owner_references]
            owned = {"ownerReferences": [*owners, manifests.owner(job)]}
            kind.cache.record_write(await kind.client.merge(scale, {}, metadata=owned))

    async def _write_scale(self, scale: Scale, status: ScaleStatus) -> None:
        _log.info("trainingjob.scaling", scale=scale.metadata.key, phase=status.phase, message=status.message)
        kind = self.caches.kind_of(scale)
        content = {"status": msgspec.to_builtins(status)}
        kind.cache.record_write(await kind.client.merge(scale, content, "status"))

    async def _create_keys(self, job: TrainingJob, known: _KnownJob) -> None:
        """Creates the keys. Those that exist may be a deleted job's of this name, and go with it a moment later."""
        meta, now = job.metadata, self._clock.now()
        content = {"type": "Opaque", "data": _new_keys()}
        try:
            await self._secrets.create(meta.key, content, **manifests.owned(job))
        except ConflictError:
            known.has_keys = now >= (unix_seconds(meta.creation_timestamp) or 0.0) + _LEFT_SECONDS
            known.keys_due = now + _KEYS_SECONDS
        else:
            known.has_keys = True

    async def _create_service(self, job: TrainingJob, pod: str) -> None:
        key = ObjectKey(job.metadata.namespace, pod)
        owned = manifests.owned(job)
        try:
            made = await self.caches.services.client.create(key, {"spec": manifests.service_spec(job, pod)}, **owned)
        except ConflictError:
            # Of et-operator, whose Services do not have our label, or of somebody else, whose name it then is.
            self.caches.note_service(job.metadata.key, pod)
            return
        self.caches.services.cache.record_write(made)

    async def _write_config(self, job: TrainingJob, data: Mapping[str, str]) -> None:
        key = ObjectKey(job.metadata.namespace, manifests.config_name(job))
        try:
            await self._config_maps.create(key, {"data": data}, **manifests.owned(job))
        except ConflictError:
            there = await self._config_maps.get(key)
            if not there.metadata.is_controlled_by(job.metadata.uid):
                raise RefusedError(f"the ConfigMap {key.name} belongs to somebody else") from None
            if not there.data.items() >= data.items():
                await self._config_maps.merge(there, {"data": data})

    async def _create_pod(
        self, job: TrainingJob, name: str, spec: manifests.Manifest, metadata: manifests.Manifest
    ) -> None:
        key = ObjectKey(job.metadata.namespace, name)
        if self._gang is not None:
            metadata = self._gang.placed(job, metadata)
        try:
            made = await self.caches.pods.client.create(key, {"spec": spec}, **metadata)
        except ConflictError:
            there = await self.caches.pods.client.get(key)
            if not there.metadata.is_controlled_by(job.metadata.uid):
                raise RefusedError(f"the pod {name} belongs to somebody else") from None
            made = there
        self.caches.pods.cache.record_write(made)

    async def _run_script(self, job: TrainingJob, script: RunScript) -> None:
        scale = script.scale
        command = manifests.script_command(job, scale, script.workers)
        try:
            async with self._scripts:
                await self._run(job, script.launcher, command, scale.script_seconds)
        except ApiError as error:
            # Also if its end is unknown: repeated until it is known, it would keep everything else from the job.
            await self._write_scale(scale, failed_scale(scale, one_line(str(error))).status)
            raise ConflictError(f"the script of {scale.metadata.name} has failed") from error

    async def _run(self, job: TrainingJob, launcher: Pod, command: Sequence[str], more_seconds: float = 0.0) -> None:
        """Runs a command in a launcher.

        Raises:
            RefusedError: It has failed.
        """
        container = manifests.launcher_container(job)
        ran = await execute(self._server, launcher.metadata.key, container, command, more_seconds)
        if ran.code:
            output = one_line(ran.output.strip())
            raise RefusedError(f"A command in {launcher.name} has ended with {ran.code}: {output}")


def _new_keys() -> Mapping[str, str]:
    """Returns the data of a Secret with a new pair of keys and the configuration of ssh, in base64."""
    key = Ed25519PrivateKey.generate()
    files = {
        # The usual name, which ssh tries without being told.
        "id_rsa": key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        "id_rsa.pub": key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        "config": _SSH_CONFIG,
    }
    return {name: base64.b64encode(content).decode() for name, content in files.items()}
