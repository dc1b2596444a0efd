"""Supports TrainingJobs of et-operator: Horovod jobs with a launcher, submitted with Arena.

Each change of an action applies to the present version of an object, or is refused.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from servicekit.bounds import MAX_SLOTS, whole
from servicekit.failpoints import failpoint
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.objects import Metadata, ObjectKey
from supervisor.cluster.annotations import EXCLUDED, OURS, REQUESTED, STATUS, SUSPENDED_BY
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Result
from supervisor.jobs.kind import (
    ActionProgress,
    HubView,
    JobKind,
    JobPodRole,
    JobState,
    KindContext,
    Right,
    RootTasks,
    WrittenField,
    owned_by,
)
from supervisor.jobs.observation import STATUS_OF
from supervisor.jobs.trainingjob import objects
from supervisor.jobs.trainingjob.discovery import EXCLUDE, HOST_DISCOVERY
from supervisor.jobs.trainingjob.objects import JobPhase, TrainingJob
from supervisor.jobs.trainingjob.objects import TrainingJobFailpoint as At
from supervisor.jobs.trainingjob.scaleouts import ScaleOuts

_ROLE = "training-job-role"
_ROLES: Mapping[str, JobPodRole] = {role.value: role for role in JobPodRole}
_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
_MAX_ATTEMPTS = 20
"""Attempts at a change that conflicts: the operator writes a job's status several times a second while it starts."""

_STARTED_OVER: Mapping[str, object] = {
    "phase": JobPhase.CREATED,
    "conditions": [],
    "currentScaler": None,
    "targetWorkers": None,
    "currentWorkers": None,
}
"""The status from which the operator starts a job; it cannot leave Suspended by itself."""

_SUSPENSION: Mapping[str, str] = {objects.SUSPENDED: "true", SUSPENDED_BY: OURS}
_MARKS = frozenset({*_SUSPENSION, STATUS})

_REQUESTED_PATH = "/metadata/annotations/" + REQUESTED.replace("~", "~0").replace("/", "~1")
_REPLICAS_PATH = "/spec/etReplicaSpecs/worker/replicas"

Operation = Mapping[str, object]
"""An operation of a JSON patch."""


class _HostFiles(msgspec.Struct, frozen=True):
    """The ConfigMap of a job, in which the operator writes its lists of hosts."""

    metadata: Metadata
    data: dict[str, str] = {}


class TrainingJobActions:
    """Implements `JobActions`."""

    def __init__(self, context: KindContext[TrainingJob]) -> None:
        self._context = context
        self._scale_outs = ScaleOuts(context)
        self._config_maps = ResourceClient(
            context.cluster.server, _CONFIG_MAPS, lambda data: msgspec.json.decode(data, type=_HostFiles)
        )
        self._excluded: dict[JobName, tuple[str, frozenset[Host]]] = {}
        self.standby_tasks: RootTasks = {"scaleout.follow": self._scale_outs.follower.run}
        self.grow, self.growable = self._scale_outs.request, self._scale_outs.growable
        self.leader_tasks: RootTasks = {"scaleout.tidy": self._scale_outs.tidy}

    async def exclude(self, state: JobState[TrainingJob], hosts: Collection[Host]) -> ActionProgress:
        launcher, asked = state.launcher, state.job.spec
        if launcher is None or asked is None:
            return ActionProgress.PENDING
        # Excluded hosts that are gone but still in the operator's list. The operator does not check its workers while
        # it adds some; Horovod would start processes on hosts that are gone.
        there = {pod.host for pod in state.workers}
        before = launcher.annotations.get(EXCLUDED, "").split()
        unlisted = frozenset(Host(name) for name in before if name in state.job.current and name not in there)
        written = (launcher.metadata.uid, frozenset(hosts) | unlisted)
        if self._excluded.get(state.name) != written:
            await self._list_without(launcher, asked.launcher.container, written[1])
            # What was written for jobs that are gone is forgotten.
            jobs = self._context.cluster.snapshot().jobs
            self._excluded = {job: known for job, known in self._excluded.items() if job in jobs}
            self._excluded[state.name] = written
        return ActionProgress.SETTLING if unlisted else ActionProgress.IN_PLACE

    async def suspend(self, state: JobState[TrainingJob]) -> ActionProgress:
        """Suspends the job. This is in place once the operator reports it and the job has no pods left."""
        if state.job.phase is JobPhase.SUSPENDED and state.job.suspended and not state.pods:
            return ActionProgress.IN_PLACE
        await self._suspend(state, _SUSPENSION)
        return ActionProgress.PENDING

    async def end(self, state: JobState[TrainingJob], result: Result) -> None:
        await self._suspend(state, {**_SUSPENSION, STATUS: STATUS_OF[result]})

    async def resume(self, state: JobState[TrainingJob], workers: int, requested: int) -> ActionProgress:
        """Resumes the job.

        It is checked until the run exists: the operator may overwrite our status with its old one.
        """
        client = self._context.client

        async def start(job: TrainingJob) -> TrainingJob:
            """Makes the operator start the job; continues an interrupted start."""
            if job.phase is not JobPhase.SUSPENDED or job.spec is None:
                return job
            if operations := size_changes(job, job.spec, workers, requested):
                job = await client.patch(job, operations)
                failpoint(At.RUN_SIZED)
            if job.annotations.keys() & _MARKS:
                freed, version = dict.fromkeys(_MARKS), job.metadata.resource_version
                job = await client.merge(job, {}, metadata={"annotations": freed, "resourceVersion": version})
                failpoint(At.RUN_FREED)
            version = job.metadata.resource_version
            return await client.merge(job, {"status": _STARTED_OVER}, "status", metadata={"resourceVersion": version})

        if state.job.phase is not JobPhase.SUSPENDED:
            return ActionProgress.SETTLING
        if await self._scale_outs.gone(state):
            await self._rewrite_lists(state.job, workers)
            failpoint(At.RUN_LISTED)
            await self._change(state.job, start)
            failpoint(At.RUN_STARTED)
        return ActionProgress.PENDING

    async def _suspend(self, state: JobState[TrainingJob], marks: Mapping[str, str]) -> None:
        """Makes the operator delete all the job's pods, unless the job has succeeded.

        The annotation would change a succeeded job to Suspended, and the next resume would train it again.
        """

        async def mark(job: TrainingJob) -> TrainingJob:
            if job.phase is JobPhase.SUCCEEDED or job.annotations.items() >= marks.items():
                return job
            as_read = {"annotations": marks, "resourceVersion": job.metadata.resource_version}
            return await self._context.client.merge(job, {}, metadata=as_read)

        if state.launcher is None or not state.launcher.succeeded:
            await self._change(state.job, mark)
            failpoint(At.RUN_SUSPENDED)

    async def _list_without(self, launcher: Pod, container: str, hosts: Collection[Host]) -> None:
        """Makes a launcher list all of the operator's hosts except these.

        It sets an annotation and, unless a volume exposes that as a file, runs a command in the launcher's container.
        """
        text = "".join(f"{host}\n" for host in sorted(hosts))
        if launcher.annotations.get(EXCLUDED, "") != text:
            await self._context.cluster.pods.merge(launcher, {}, metadata={"annotations": {EXCLUDED: text}})
            failpoint(At.EXCLUSIONS_SHOWN)
        if EXCLUDED in launcher.shown:
            return
        ran = await execute(self._context.cluster.server, launcher.key, container, [*EXCLUDE, *sorted(hosts)])
        if ran.code:
            raise ApiUnavailableError(
                f"{launcher.key.name} cannot leave hosts out: code {ran.code}, {ran.output.strip()}"
            )
        failpoint(At.EXCLUSIONS_LISTED)

    async def _rewrite_lists(self, job: TrainingJob, workers: int) -> None:
        """Updates the job's ConfigMap, because the operator keeps an existing one with the hosts of the last run."""
        slots = 1 if job.spec is None else job.spec.slots
        try:
            read = await self._config_maps.get(ObjectKey(job.metadata.namespace, f"{job.metadata.name}-config"))
            if changes := host_lists(read.data, job.worker_names(workers), slots):
                await self._config_maps.merge(read, {"data": changes})
        except NotFoundError:
            return

    async def _change(self, known: TrainingJob, change: Callable[[TrainingJob], Awaitable[TrainingJob]]) -> None:
        """Applies a change to the present version of the job, and retries it after conflicts."""
        job, uid = known, known.metadata.uid
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._context.wrote(await change(job))
            except ConflictError:
                job = await self._context.client.get(known.metadata.key)
                if job.metadata.uid != uid:
                    raise NotFoundError("another job has the same name now") from None
            else:
                return
        raise ApiUnavailableError(f"{known.metadata.name} changes faster than it can be changed")


def size_changes(job: TrainingJob, asked: objects.TrainingJobSpec, workers: int, requested: int) -> list[Operation]:
    """The operations that give a job `workers` workers; none if it has them.

    An annotation keeps the requested number.
    """
    changes: list[Operation] = []
    if asked.replicas != workers:
        changes.append({"op": "replace", "path": _REPLICAS_PATH, "value": workers})
        for template in (asked.launcher, asked.worker):
            # A variable of that name that does not hold the number of workers has another meaning.
            size = template.variables.get(objects.SIZE)
            if size is not None and size.value == str(asked.replicas):
                changes.append({"op": "replace", "path": size.path, "value": str(workers)})
    noted = None if workers == requested else str(requested)
    if noted is not None and job.annotations.get(REQUESTED) != noted:
        changes.append({"op": "add", "path": _REQUESTED_PATH, "value": noted})
    elif noted is None and REQUESTED in job.annotations:
        changes.append({"op": "remove", "path": _REQUESTED_PATH})
    return changes


def host_lists(data: Mapping[str, str], hosts: Sequence[Host], slots: int) -> dict[str, str]:
    """The entries of the job's ConfigMap that list other hosts than these, with the lists to write."""
    _, _, written = data.get("hostfile", "").partition("\n")[0].rpartition(":")
    slots = whole(written, MAX_SLOTS) or slots  # As the operator wrote it.
    wanted = {
        "hostfile": "".join(f"{host}:{slots}\n" for host in hosts),
        "deepspeed-hostfile": "".join(f"{host} slots={slots}\n" for host in hosts),
    }
    return {name: text for name, text in wanted.items() if name in data and data[name] != text}


TRAININGJOB = JobKind(
    name=objects.KIND,
    resource=objects.TRAINING_JOBS,
    rights=(
        Right(
            group=objects.TRAINING_JOBS.group,
            resources=("trainingjobs",),
            verbs=("get", "list", "watch", "patch"),
            reason="to follow jobs, and to suspend, resize and resume them; get after a conflicting change",
        ),
        Right(
            group=objects.TRAINING_JOBS.group,
            resources=("trainingjobs/status",),
            verbs=("patch",),
            reason="the status from which the operator restarts a suspended job",
        ),
        Right(
            group=objects.TRAINING_JOBS.group,
            resources=("scaleouts",),
            verbs=("list", "watch", "create", "delete"),
            reason="to let a job that was resumed smaller grow while it runs. Without these rights, or the CRD of "
            "ScaleOuts, the job regains its size at its next resume",
        ),
        Right(
            group="",
            resources=("configmaps",),
            verbs=("get", "patch"),
            reason="the host list of a job that resumes, in its ConfigMap `<job>-config`",
        ),
        Right(
            group="",
            resources=("pods/exec",),
            verbs=("get", "create"),
            reason="to write the excluded hosts into launchers that do not mount the list; API servers before 1.35 "
            "require get, later ones create",
        ),
    ),
    pod_labels=frozenset({_ROLE, objects.SCALE_OUT}),
    annotations=objects.OWN_ANNOTATIONS,
    discovery=HOST_DISCOVERY,
    failpoints=tuple(At),
    decode=objects.read_training_job,
    role=lambda labels: _ROLES.get(labels.get(_ROLE, "")),
    reference=partial(owned_by, name=objects.KIND, resource=objects.TRAINING_JOBS),
    observe=objects.observe_training_job,
    actions=TrainingJobActions,
    # Its suspension is an annotation. The number of workers is written into variables of both templates as well.
    hub=HubView(
        written=(WrittenField(path=("etReplicaSpecs",), mark=REQUESTED),),
        phase=("phase",),
        failures=frozenset({JobPhase.FAILED}),
    ),
)
