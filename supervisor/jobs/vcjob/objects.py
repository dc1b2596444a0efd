"""Jobs of Volcano, and how they are read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from servicekit.bounds import counted, whole
from supervisor.cluster.annotations import PREFIX, ours
from supervisor.cluster.podspec import Body
from supervisor.jobs import manifest
from supervisor.jobs.manifest import PodTemplate, decoded
from supervisor.jobs.observation import refusal
from supervisor.jobs.replicated.objects import Condition, ReplicatedJob, ReplicatedSpec

SIZES = f"{PREFIX}requested-sizes"
"""The sizes of a job before it was suspended, as JSON, until it runs with them again."""
SUSPENSIONS = f"{PREFIX}suspensions"
"""How often the supervisor has suspended a job: the start after it is a new run."""
_MOST_SUSPENSIONS = 10**9

_LOSS = frozenset({"PodEvicted", "*"})
"""Volcano takes pods that it deletes itself, because a task has shrunk, for evicted ones, too."""
_ENDING = frozenset({"AbortJob", "TerminateJob", "CompleteJob"})


class Phase(StrEnum):
    """The phases that are asked for here."""

    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"
    ABORTING = "Aborting"
    ABORTED = "Aborted"


_CONDITION: Mapping[str, Condition] = {
    Phase.COMPLETED: Condition.SUCCEEDED,
    Phase.FAILED: Condition.FAILED,
    Phase.TERMINATED: Condition.FAILED,
}


class TaskSize(Body, frozen=True):
    """The number of a task's pods, and how many of them have to be there for the job to start."""

    name: str
    replicas: int
    min_available: int


class Sizes(Body, frozen=True):
    """The sizes of a job: those of its tasks, and how many pods have to be there for it to start."""

    tasks: tuple[TaskSize, ...]
    min_available: int

    @property
    def total(self) -> int:
        """The number of pods."""
        return sum(task.replicas for task in self.tasks)

    @property
    def scaled(self) -> str:
        """The task whose number of pods may change: the largest one with workers in its name, or else the largest."""
        return max(self.tasks, key=lambda task: ("worker" in task.name, task.replicas)).name

    def resized(self, total: int) -> "Sizes":
        """Returns the sizes for so many pods; the number of the other tasks' pods stays."""
        others = sum(task.replicas for task in self.tasks if task.name != self.scaled)
        tasks = tuple(_resized(task, total - others) if task.name == self.scaled else task for task in self.tasks)
        return Sizes(tasks=tasks, min_available=min(self.min_available, total))

    @property
    def none(self) -> "Sizes":
        """Those of a suspended job."""
        return Sizes(tasks=tuple(_resized(task, 0) for task in self.tasks), min_available=0)

    @property
    def operations(self) -> Iterator[Mapping[str, object]]:
        """The operations of a JSON patch that writes them: Volcano accepts them in one write only.

        `add` replaces a value, and also writes one where Volcano has left out a zero.
        """
        yield {"op": "add", "path": "/spec/minAvailable", "value": self.min_available}
        for number, task in enumerate(self.tasks):
            yield {"op": "add", "path": f"/spec/tasks/{number}/replicas", "value": task.replicas}
            yield {"op": "add", "path": f"/spec/tasks/{number}/minAvailable", "value": task.min_available}

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode("ascii")


def _resized(task: TaskSize, replicas: int) -> TaskSize:
    return TaskSize(name=task.name, replicas=replicas, min_available=min(task.min_available, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoJob(ReplicatedJob):
    """One job.

    Attributes:
        requested: The sizes that its user has asked for; None where the spec is not understood.
        suspensions: How often the supervisor has suspended it.
        version: How often Volcano has restarted all of its pods.
    """

    requested: Sizes | None = None
    suspensions: int = 0
    version: int = 0

    @property
    def run_id(self) -> str:
        """Volcano counts its own restarts only."""
        return "" if self.suspended or self.spec is None else f"{self.suspensions}.{self.version}"

    @property
    def still_suspended(self) -> bool:
        """Whether it is suspended; Volcano says nothing about it."""
        return self.suspended


class _Policy(Body, frozen=True):
    action: str = ""
    event: str = ""
    events: tuple[str, ...] | None = ()

    @property
    def ends_job(self) -> bool:
        """Whether a job ends when it loses a pod, and so also when it is suspended."""
        return self.action in _ENDING and not _LOSS.isdisjoint({self.event, *(self.events or ())})


class _Task(Body, frozen=True):
    name: str
    template: PodTemplate
    replicas: int = 0
    min_available: int | None = None
    policies: tuple[_Policy, ...] | None = ()

    @property
    def size(self) -> TaskSize:
        least = self.replicas if self.min_available is None else self.min_available
        return TaskSize(name=self.name, replicas=self.replicas, min_available=least)


class _Spec(Body, frozen=True):
    tasks: tuple[_Task, ...]
    min_available: int = 0
    policies: tuple[_Policy, ...] | None = ()

    @property
    def sizes(self) -> Sizes:
        return Sizes(tasks=tuple(task.size for task in self.tasks), min_available=self.min_available)

    @property
    def ends_when_suspended(self) -> bool:
        policies = [*(self.policies or ()), *(policy for task in self.tasks for policy in task.policies or ())]
        return any(policy.ends_job for policy in policies)


class _State(Body, frozen=True):
    phase: str = ""


class _Status(Body, frozen=True):
    state: _State = _State()
    version: int = 0


def read_volcano_job(data: bytes | msgspec.Raw) -> VolcanoJob:
    """Returns a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, status = read.metadata, decoded(read.status, _Status) or _Status()
    annotations, phase = ours(metadata.annotations), status.state.phase
    job = VolcanoJob(
        metadata=metadata.identity,
        annotations=annotations,
        deleted=metadata.deletion_timestamp is not None,
        conditions=frozenset({_CONDITION[phase]} if phase in _CONDITION else ()),
        suspensions=whole(annotations.get(SUSPENSIONS), _MOST_SUSPENSIONS) or 0,
        version=counted(status.version),
    )
    spec = decoded(read.spec, _Spec)
    # A person has aborted it, or a policy would.
    if spec is None or not spec.tasks or spec.ends_when_suspended or phase in (Phase.ABORTING, Phase.ABORTED):
        return job
    requested = _recorded(annotations, spec.sizes) or spec.sizes
    return replace(job, requested=requested, spec=_asked(spec, requested))


def _recorded(annotations: Mapping[str, str], present: Sizes) -> Sizes | None:
    """The sizes of a job that was suspended; None if there are none of the tasks that it has."""
    sizes = decoded(msgspec.Raw(annotations.get(SIZES, "").encode()), Sizes)
    if sizes is None or [task.name for task in sizes.tasks] != [task.name for task in present.tasks]:
        return None
    return sizes


def _asked(spec: _Spec, requested: Sizes) -> ReplicatedSpec | None:
    """What the job asks for; while it is suspended, what it will ask for. None if it is not understood."""
    suspended = spec.sizes.total == 0 and requested.total > 0
    sizes = requested if suspended else spec.sizes
    if any(task.replicas < 0 for task in sizes.tasks):
        return None
    annotations = tuple(task.template.annotations for task in spec.tasks)
    if why := refusal([task.replicas for task in sizes.tasks]):
        return ReplicatedSpec(
            sizes={"": sizes.total}, scaled="", suspended=suspended, demands={}, annotations=annotations, refusal=why
        )
    try:
        demands = {task.name: task.template.demand() for task in spec.tasks}
        containers = [container for task in spec.tasks for container in task.template.containers()]
    except (msgspec.MsgspecError, ValueError):
        return None
    return ReplicatedSpec(
        sizes={task.name: task.replicas for task in sizes.tasks},
        scaled=sizes.scaled,
        suspended=suspended,
        demands=demands,
        annotations=annotations,
        commands=tuple(" ".join(each.words) for each in containers),
    )
