"""What the operator does next for a job: pure, from what it sees to what it does and the status it writes.

It does what the real one was observed to do. That it never looks at minReplicas, never asks whether others have changed
the status, and knows no way out of Suspended is part of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from simulator.et_operator.objects import Condition, Pod, Status, TrainingJob
from simulator.et_operator.settings import Flaw, Settings
from simulator.et_operator.vocabulary import Phase, Step, index_of, worker_name


@dataclass(frozen=True, slots=True)
class View:
    """A job as the operator's cache shows it."""

    job: TrainingJob
    workers: tuple[Pod, ...]
    launcher: Pod | None
    hosts: frozenset[str] | None
    """What it believes to be on the launcher's list; None = it has never written it."""
    deleted: frozenset[str] = frozenset()
    """Workers that were deleted lately."""

    @property
    def running(self) -> frozenset[str]:
        """The workers that run."""
        return frozenset(pod.name for pod in self.workers if pod.runs)

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All of them."""
        return (*self.workers, *([self.launcher] if self.launcher else []))


@dataclass(frozen=True, slots=True)
class MakeConfig:
    """Make the ConfigMap with these hosts, unless there is one: that one stays as it is."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MakeWorker:
    """Make that worker's pod, perhaps for a ScaleOut."""

    name: str
    scale_out: str = ""


@dataclass(frozen=True, slots=True)
class MakeLauncher:
    """Make the launcher's pod; its list comes from the ConfigMap, and is taken for that of these hosts."""

    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete that pod, with no time to end in."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class WriteHosts:
    """Rewrite the host list in the launcher, by a command that runs there."""

    launcher: Pod
    hosts: frozenset[str]


Action = MakeConfig | MakeWorker | MakeLauncher | Remove | WriteHosts


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to do after so many seconds, if it is still to be done then, and the whole status to write after it."""

    reason: str
    delay: float
    status: Status
    actions: tuple[Action, ...] = ()


def reconcile(view: View, settings: Settings, now: str) -> Outcome | None:
    """The next step, or None: nothing is to be done.

    Args:
        view: What is so.
        settings: Of the operator.
        now: For what is stamped in the status.
    """
    outcome = _step(view, settings)
    status = _stamped(_counted(view, outcome.status if outcome else view.job.status), now)
    if outcome is None and (status == view.job.status or view.job.status.phase in (Phase.NEW, Phase.SUSPENDED)):
        return None
    if outcome is None:
        return Outcome("status", settings.pace.status, status)
    return Outcome(outcome.reason, outcome.delay, status, outcome.actions)


def _step(view: View, settings: Settings) -> Outcome | None:
    status, pace = view.job.status, settings.pace
    if view.job.suspension_asked:
        return _suspend(view, pace.suspend)
    match status.phase:
        case Phase.NEW | Phase.CREATED:
            return _start(view, settings)
        case Phase.RUNNING | Phase.SCALING:
            return _end_of_launcher(view, pace.launcher_end) or _keep(view, settings)
        case Phase.FAILED if view.job.restarts_left:
            return _restart(view, pace.restart)
        case Phase.FAILED | Phase.SUCCEEDED:
            return _clean(view)
        case _:  # Suspended: there is no way out that the operator knows.
            return None


def _suspend(view: View, delay: float) -> Outcome | None:
    # Also what has succeeded or failed long ago.
    if view.job.status.phase == Phase.SUSPENDED and not view.pods:
        return None
    return Outcome("suspend", delay, _in_phase(view.job.status, Phase.SUSPENDED), _removed(view.pods))


def _start(view: View, settings: Settings) -> Outcome | None:
    status = view.job.status
    if not status.has(Step.WORKERS_CREATED):
        return _make_workers(view, settings)
    if not status.has(Step.LAUNCHER_CREATED):
        return _make_launcher(view) or _replace(view, settings)
    if view.launcher is not None and view.launcher.runs:
        return Outcome("running", 0.0, _in_phase(status, Phase.RUNNING))
    return _end_of_launcher(view, settings.pace.launcher_end)


def _make_workers(view: View, settings: Settings) -> Outcome:
    job = view.job
    wanted = [worker_name(job.metadata.name, index) for index in range(job.spec.et_replica_specs.worker.replicas)]
    # Of an earlier start, where nobody has removed it: then these are started, however many are wanted now.
    target = job.status.target_workers or wanted
    made = [*target]
    if Flaw.EXTRA_WORKER in settings.flaws and not job.status.restart_count:
        made.append(worker_name(job.metadata.name, 1 + max(map(index_of, target))))
    there = {pod.name for pod in view.workers}
    status = replace(_in_phase(job.status, Phase.CREATED), target_workers=[*target])
    return Outcome(
        "start",
        0.0,
        _done(status, Step.WORKERS_CREATED),
        (MakeConfig(tuple(target)), *(MakeWorker(name) for name in made if name not in there)),
    )


def _make_launcher(view: View) -> Outcome | None:
    if not view.running >= {*(view.job.status.target_workers or ())}:
        return None
    status = _done(_done(view.job.status, Step.WORKERS_READY), Step.LAUNCHER_CREATED)
    actions = () if view.launcher else (MakeLauncher(view.running),)
    return Outcome("launch", 0.0, status, actions)


def _end_of_launcher(view: View, delay: float) -> Outcome | None:
    """A launcher that is gone has not ended: the real operator goes on waiting for it, as Running, for ever."""
    status = view.job.status
    if not status.has(Step.LAUNCHER_CREATED) or view.launcher is None:
        return None
    if view.launcher.status.phase == "Failed":
        return Outcome("failed", delay, _in_phase(status, Phase.FAILED))
    if view.launcher.status.phase == "Succeeded":
        return Outcome("succeeded", delay, _in_phase(status, Phase.SUCCEEDED))
    return None


def _keep(view: View, settings: Settings) -> Outcome | None:
    if _scales_out(view.job.status):
        return None
    if settings.commands and view.launcher and view.launcher.runs and view.hosts != view.running:
        action = WriteHosts(view.launcher, view.running)
        return Outcome("hosts", settings.pace.hosts, view.job.status, (action,))
    return _replace(view, settings)


def _replace(view: View, settings: Settings) -> Outcome | None:
    """New workers for lost ones: only where the job asks for it, and under numbers that nobody has had."""
    job, target = view.job, view.job.status.target_workers or []
    alive = {pod.name for pod in view.workers if not pod.ended}
    lost = [name for name in target if name not in alive]
    if not lost or job.spec.et_replica_specs.worker.restart_policy != "Always":
        return None
    first = 1 + max(map(index_of, (*target, *alive, *view.deleted)))
    new = [worker_name(job.metadata.name, first + offset) for offset in range(len(lost))]
    status = replace(job.status, target_workers=[*(name for name in target if name in alive), *new])
    ended = _removed(pod for pod in view.workers if pod.ended)
    made = (MakeWorker(name) for name in new)
    return Outcome("replace", settings.pace.replacement, status, (*ended, *made))


def _restart(view: View, delay: float) -> Outcome:
    before = view.job.status
    again = Status(Phase.CREATED.value, restart_count=(before.restart_count or 0) + 1, start_time=before.start_time)
    return Outcome("restart", delay, again, _removed(view.pods))


def _clean(view: View) -> Outcome | None:
    policy = view.job.spec.clean_pod_policy
    pods = [pod for pod in view.pods if policy == "All" or (policy == "Running" and not pod.ended)]
    return Outcome("clean", 0.0, view.job.status, _removed(pods)) if pods else None


def _removed(pods: Iterable[Pod]) -> tuple[Remove, ...]:
    return tuple(Remove(pod) for pod in pods)


def _in_phase(status: Status, phase: Phase) -> Status:
    status = replace(status, phase=phase.value)
    return _done(status, phase.value)


def _done(status: Status, what: str) -> Status:
    others = [each for each in status.conditions or () if each.type != what]
    return replace(status, conditions=[*others, Condition(what, "True", reason=f"TrainingJob{what}")])


def _counted(view: View, status: Status) -> Status:
    """With the workers that the operator believes in: those that were deleted lately among them."""
    if _scales_out(status):
        return status
    if status.phase in (Phase.NEW, Phase.CREATED) and not status.has(Step.WORKERS_CREATED):
        return status
    names = {*view.running, *(view.deleted & {*(status.current_workers or ())})}
    launcher = 1 if view.launcher is not None and view.launcher.runs else 0
    return replace(
        status,
        current_workers=sorted(names, key=index_of),
        replica_statuses={"Launcher": {"active": launcher}, "Worker": {"active": len(view.running)}},
    )


def _scales_out(status: Status) -> bool:
    """Nobody looks at the workers that are there then."""
    return status.phase == Phase.SCALING and bool(status.current_scaler)


def _stamped(status: Status, now: str) -> Status:
    conditions = [
        each if each.last_transition_time else replace(each, last_transition_time=now, last_update_time=now)
        for each in status.conditions or ()
    ]
    start = status.start_time or (now if status.phase else None)
    return replace(status, conditions=conditions if status.conditions is not None else None, start_time=start)
