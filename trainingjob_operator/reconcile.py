"""Decides what has to be done for one TrainingJob: a pure function from what is seen to changes.

The status is written before anything that follows from it is created, and what is created is recognized by its owner
and its run. So whatever part of the changes was made when the operator ended, the next look continues there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import cached_property

from msgspec.structs import replace

from servicekit.bounds import instant_of, unix_seconds
from trainingjob_operator.api import (
    HOSTS_ANNOTATION,
    RUN_LABEL,
    CleanPodPolicy,
    Condition,
    JobStatus,
    Phase,
    Pod,
    RestartPolicy,
    Scale,
    TrainingJob,
    index_of,
    worker_name,
)
from trainingjob_operator.changes import (
    Change,
    CreateKeys,
    CreateLauncher,
    CreateService,
    CreateWorker,
    DeletePod,
    DeleteService,
    Outcome,
    WriteConfig,
    WriteGroup,
    WriteHosts,
    WriteScale,
    WriteStatus,
)
from trainingjob_operator.manifests import hosts_of, hosts_text, launcher_name, ssh_secret
from trainingjob_operator.scaling import ScaledRun, ScalingStep, failed_scale, next_scaling_step

LEAVE_SECONDS = 5.0
"""From the list without a worker until its pod is deleted: Horovod reads the list once a second, and its survivors form
a new ring within two."""

DISRUPTED_SECONDS = 660.0
"""A launcher that fails so long after the loss of a pod has failed because of it: Horovod waits for enough workers for
600 s."""

_RECREATE_SECONDS = 10.0
"""From the failure of a worker until its replacement, so that one that cannot start does not fill the cluster."""

_FIRST_BACKOFF, _MAX_BACKOFF = 5.0, 300.0
"""Seconds from a launcher's failure until the restart. The first leaves time for somebody who is just suspending the
job, for which its launcher fails, too."""


@dataclass(frozen=True)
class SeenJob:
    """A job and everything that belongs to it, as the caches show it.

    Attributes:
        pods: The pods that the job controls, of all its runs.
        services: The names of its Services.
        scales: Its ScaleIns and ScaleOuts that are not over, the oldest first.
        gang: The least number of workers in its PodGroup; -1 if that is not known, None without a gang scheduler.
    """

    job: TrainingJob
    pods: tuple[Pod, ...] = ()
    services: frozenset[str] = frozenset()
    has_keys: bool = False
    scales: tuple[Scale, ...] = ()
    gang: int | None = None

    @cached_property
    def run(self) -> int:
        """The number of the present run. A status that another operator has written may have lost it."""
        return max([self.job.status.run or 0, *(pod.run for pod in self.pods)])

    @cached_property
    def earlier(self) -> tuple[Pod, ...]:
        """The pods of earlier runs."""
        return tuple(pod for pod in self.pods if pod.run < self.run)

    @cached_property
    def launcher(self) -> Pod | None:
        """The launcher of this run."""
        return next((pod for pod in self.pods if pod.is_launcher and pod.run == self.run), None)

    @cached_property
    def workers(self) -> dict[str, Pod]:
        """The workers of this run by their names."""
        return {pod.name: pod for pod in self.pods if not pod.is_launcher and pod.run == self.run}

    @cached_property
    def listed(self) -> frozenset[str]:
        """The hosts on the launcher's list, as far as this operator has written it."""
        if self.launcher is None:
            return frozenset()
        text = self.launcher.metadata.annotations.get(HOSTS_ANNOTATION)
        if text is None:
            return frozenset(self.job.status.current_workers or ())
        return frozenset(hosts_of(text))

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The workers that run, in the order of their numbers."""
        return _in_order(name for name, pod in self.workers.items() if pod.running)


def reconcile(seen: SeenJob, now: float) -> Outcome:
    """Decides what has to be done for a job at that instant (Unix seconds)."""
    job, phase = seen.job, seen.job.status.phase
    if job.metadata.deletion_timestamp is not None:
        return Outcome()  # The garbage collector deletes what belongs to it.
    if phase in (Phase.SUCCEEDED, Phase.FAILED):
        return _ended(seen)
    if job.suspended:
        return _suspended(seen, now)
    if phase in (Phase.NEW, Phase.SUSPENDED):
        start = job.status.start_time or _stamp(now)
        message = "The job is resumed." if phase == Phase.SUSPENDED else "The job is created."
        # Its conditions tell of this start: the supervisor counts how long it waits from the latest of them.
        status = replace(job.status, phase=Phase.CREATED.value, start_time=start, conditions=[])
        return _begun(seen, _noted(status, "Created", now, message), now)
    launcher = seen.launcher
    if launcher is not None and launcher.succeeded:
        return _finish(seen, Phase.SUCCEEDED, "The launcher has succeeded.", now)
    is_lost = phase in (Phase.RUNNING, Phase.SCALING) if launcher is None else launcher.deleting
    if is_lost:  # Whatever its containers end with now, somebody else has ended them.
        return _start_over(seen, "The launcher's pod was deleted, or lost with its node.", now)
    if launcher is not None and launcher.failed:
        return _launcher_failed(seen, launcher, now)
    return _run(seen, now)


def only_tells(before: JobStatus, after: JobStatus) -> bool:
    """Whether a status says no more than how far the pods have come, from which nothing follows."""
    told = {"current_workers": after.current_workers, "replica_statuses": after.replica_statuses}
    return after == replace(before, conditions=after.conditions, **told)


def told_later(before: JobStatus, outcome: Outcome, due: float) -> Outcome:
    """Leaves a status that only tells how far the pods have come for that instant (Unix seconds)."""
    changes = tuple(
        change
        for change in outcome.changes
        if not (isinstance(change, WriteStatus) and only_tells(before, change.status))
    )
    if len(changes) == len(outcome.changes):
        return outcome
    return Outcome(changes, due if outcome.again_at is None else min(due, outcome.again_at))


def _begun(seen: SeenJob, status: JobStatus, now: float) -> Outcome:
    """Starts a job that has this status now, which is written together with what the start adds to it."""
    outcome = reconcile(dataclass_replace(seen, job=replace(seen.job, status=status)), now)
    if any(isinstance(change, WriteStatus) for change in outcome.changes):
        return outcome
    return Outcome((WriteStatus(status), *outcome.changes), outcome.again_at)


def _ended(seen: SeenJob) -> Outcome:
    """Deletes the pods of a job that has ended as its policy says, and closes what would still scale it."""
    policy = seen.job.spec.clean_pod_policy
    pods = [
        pod
        for pod in seen.pods
        if not pod.deleting and (policy == CleanPodPolicy.ALL or (policy == CleanPodPolicy.RUNNING and not _over(pod)))
    ]
    return Outcome((*_closed(seen.scales, "The job has ended."), *map(DeletePod, pods)))


def _suspended(seen: SeenJob, now: float) -> Outcome:
    """Deletes all pods; the job is suspended once none is left."""
    job = seen.job
    if seen.pods:
        closed = _closed((one for one in seen.scales if one.begun), "The job was suspended.")
        return Outcome((*closed, *(DeletePod(pod) for pod in seen.pods if not pod.deleting)))
    if job.status.phase == Phase.SUSPENDED:
        return Outcome()
    status = replace(_between_runs(seen), phase=Phase.SUSPENDED.value)
    return Outcome((WriteStatus(_noted(status, "Suspended", now, "The job is suspended and has no pods.")),))


def _launcher_failed(seen: SeenJob, launcher: Pod, now: float) -> Outcome:
    """Restarts the job or ends it. What a reclaim has caused counts against no limit."""
    job = seen.job
    disrupted_at = job.status.disrupted_at
    is_recent = disrupted_at is not None and now - disrupted_at < DISRUPTED_SECONDS
    if launcher.reclaimed or is_recent or any(_is_taken(seen, name) for name in job.status.target_workers or ()):
        return _start_over(seen, "The launcher has failed after a reclaim.", now)
    if not job.restarts_left:
        return _finish(seen, Phase.FAILED, "The launcher has failed.", now)
    due = (unix_seconds(launcher.ended_at) or now) + min(_MAX_BACKOFF, _FIRST_BACKOFF * 2 ** min(job.restarts, 10))
    if now < due:
        return Outcome(again_at=due)
    return _start_over(seen, "The launcher has failed.", now, counted=True)


def _start_over(seen: SeenJob, why: str, now: float, *, counted: bool = False) -> Outcome:
    """Begins another run. The pods of this one are deleted as those of an earlier run."""
    status = replace(_between_runs(seen), phase=Phase.CREATED.value)
    if counted:
        status = replace(status, restart_count=seen.job.restarts + 1)
    closed = _closed((one for one in seen.scales if one.begun), "The job was restarted.")
    return Outcome((*closed, WriteStatus(_noted(status, "Restarting", now, why))))


def _between_runs(seen: SeenJob) -> JobStatus:
    """The status of a job that has no pods: what outlasts a run, with the number of the next one."""
    before = seen.job.status
    return JobStatus(
        phase=before.phase,
        conditions=[],
        current_workers=[],
        restart_count=before.restart_count,
        start_time=before.start_time,
        run=seen.run + 1,
    )


def _finish(seen: SeenJob, phase: Phase, why: str, now: float) -> Outcome:
    status = replace(seen.job.status, phase=phase.value, completion_time=_stamp(now), current_scaler=None)
    return Outcome((WriteStatus(_noted(_counted(status, seen), phase.value, now, why)),))


def _run(seen: SeenJob, now: float) -> Outcome:
    """Brings a run to its workers, its launcher and its list of hosts."""
    status, instants = _with_targets(seen, now)
    scaling = next_scaling_step(seen.scales, ScaledRun(seen.job, seen.launcher, seen.workers, status), now)
    status, instants = scaling.status, [*instants, *scaling.again_at]
    if seen.launcher is None and (broken := _broken_worker(seen, status)) is not None:
        return _finish(seen, Phase.FAILED, f"{broken.name} has failed before the launcher was created.", now)

    hosts = _in_order(name for name in seen.running if name in (status.target_workers or ()))
    text = hosts_text(hosts, seen.job.slots)
    write = _hosts_to_write(seen, text)
    if write is not None:
        status = replace(status, hosts_changed_at=now)
    status = _counted(replace(status, run=seen.run), seen)
    status = _phased(status, seen, now)

    deletions, due = _deletions(seen, status, scaling.add_pods, now, write_pending=write is not None)
    changes: list[Change] = [*scaling.before]
    if status != seen.job.status:
        changes.append(WriteStatus(status))
    changes += [] if write is None else [write]
    changes += [*deletions, *_creations(seen, status, scaling, hosts), *scaling.after]
    wanted = {*(status.target_workers or ()), *scaling.add_pods, *(pod.name for pod in seen.pods)}
    changes += [DeleteService(name) for name in sorted(seen.services - wanted - {launcher_name(seen.job)})]
    return Outcome(tuple(changes), min([*instants, *due], default=None))


def _with_targets(seen: SeenJob, now: float) -> tuple[JobStatus, list[float]]:
    """The status with the workers that the job should have, and the instants at which that may change."""
    status, job = seen.job.status, seen.job
    name, has_launcher = job.metadata.name, seen.launcher is not None
    targets = list(status.target_workers or ())
    if not targets and has_launcher:
        targets = list(_in_order(seen.workers))
    # The pods of a run that et-operator began have numbers that this status does not know.
    # A ScaleOut may have taken numbers before the operator ended.
    added = [name for one in seen.scales if one.begun for name in one.status.add_pods]
    index = max([status.next_index or 0, *(index_of(each) + 1 for each in (*targets, *seen.workers, *added))])
    if not targets and not has_launcher:
        targets = [worker_name(name, number) for number in range(job.replicas)]
        index = max(index, job.replicas)
    elif status.observed_replicas not in (None, job.replicas):
        more = max(0, job.replicas - len(targets))
        # A smaller job does without the workers that it has lost, before it lets others go.
        kept_first = sorted(targets, key=lambda worker: (has_launcher and _is_lost(seen, worker), index_of(worker)))
        targets = [*kept_first[: job.replicas], *(worker_name(name, index + number) for number in range(more))]
        index += more

    kept, instants, disrupted_at = list[str](), list[float](), status.disrupted_at
    for worker in targets:
        if not has_launcher or not _is_lost(seen, worker):
            kept.append(worker)
            continue
        if _is_taken(seen, worker):
            disrupted_at = now
        elif not _restarts_workers(job):
            continue
        elif (due := _recreated_at(seen.workers[worker])) > now:
            instants.append(due)
            kept.append(worker)
            continue
        kept.append(worker_name(name, index))
        index += 1
    status = replace(status, target_workers=list(_in_order(kept)), next_index=index, disrupted_at=disrupted_at)
    return replace(status, observed_replicas=job.replicas), instants


def _is_lost(seen: SeenJob, worker: str) -> bool:
    """Whether a worker is gone or ends; one that was never listed has not been created yet."""
    pod = seen.workers.get(worker)
    return worker in seen.listed if pod is None else pod.deleting or _over(pod)


def _is_taken(seen: SeenJob, worker: str) -> bool:
    """Whether a worker is lost without having failed: its pod was deleted, evicted, or lost with its node."""
    pod = seen.workers.get(worker)
    return _is_lost(seen, worker) and (pod is None or pod.deleting or not _over(pod) or pod.reclaimed)


def _recreated_at(pod: Pod) -> float:
    """When a worker that has failed by itself is created again."""
    return (unix_seconds(pod.ended_at) or 0.0) + _RECREATE_SECONDS


def _broken_worker(seen: SeenJob, status: JobStatus) -> Pod | None:
    """A worker that has failed by itself before the launcher existed, and is not to be started again."""
    if _restarts_workers(seen.job):
        return None
    found = (seen.workers.get(name) for name in status.target_workers or ())
    return next((pod for pod in found if pod is not None and _over(pod) and not pod.reclaimed), None)


def _restarts_workers(job: TrainingJob) -> bool:
    policy = job.spec.et_replica_specs.worker.restart_policy
    return policy in (RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.EXIT_CODE)


def _hosts_to_write(seen: SeenJob, text: str) -> WriteHosts | None:
    """The change of the launcher's list, which never becomes empty: Horovod would end the job."""
    launcher = seen.launcher
    if launcher is None or not text:
        return None
    is_ours = RUN_LABEL in launcher.metadata.labels
    known = launcher.metadata.annotations.get(HOSTS_ANNOTATION)
    # Another operator has written the status since: it may have written the file as well, whose newer version counts.
    is_overwritten = is_ours and seen.job.status.run is None
    if known is not None and hosts_of(known) == hosts_of(text) and not is_overwritten:
        return None
    if not is_ours and not launcher.running:
        return None
    return WriteHosts(launcher, f"\n{text}" if known == text else text, by_command=not is_ours)


def _deletions(
    seen: SeenJob, status: JobStatus, add_pods: Sequence[str], now: float, *, write_pending: bool
) -> tuple[list[DeletePod], list[float]]:
    """The pods that have to go, and the instants at which others have to.

    A worker first leaves the list, so that its ranks leave the ring, and only then its pod is deleted.
    """
    wanted = {*(status.target_workers or ()), *add_pods}
    gone = [DeletePod(pod) for pod in seen.earlier if not pod.deleting]
    instants = list[float]()
    for name, pod in seen.workers.items():
        if pod.deleting:
            continue
        if _over(pod):
            if name in wanted and not pod.reclaimed and (due := _recreated_at(pod)) > now:
                instants.append(due)
            elif pod.reclaimed or _restarts_workers(seen.job):
                gone.append(DeletePod(pod))
        elif name not in wanted:
            leaves_at = (status.hosts_changed_at or 0.0) + LEAVE_SECONDS
            if seen.launcher is None or (leaves_at <= now and not write_pending and name not in seen.listed):
                gone.append(DeletePod(pod))
            elif leaves_at > now:  # Otherwise it stays on the list until a worker runs that can be listed instead.
                instants.append(leaves_at)
    return gone, instants


def _creations(seen: SeenJob, status: JobStatus, scaling: ScalingStep, hosts: Sequence[str]) -> list[Change]:
    """The objects that are missing: keys, Services and pods of workers and, once all of them run, the launcher's."""
    targets, there = status.target_workers or [], {pod.name for pod in seen.pods}
    made: list[Change] = []
    is_starting = seen.launcher is None or not there.issuperset(targets)
    if is_starting and not seen.has_keys and ssh_secret(seen.job) == seen.job.metadata.name:
        made.append(CreateKeys())
    # The workers start together. Later, one that is replaced must not wait for as many others.
    gang = len(targets) if seen.launcher is None else min(len(targets), seen.job.min_replicas)
    if seen.gang not in (None, gang):
        made.append(WriteGroup(gang))
    for name in (*targets, *scaling.add_pods):
        if name not in seen.services:
            made.append(CreateService(name))
        if name not in there:
            made.append(CreateWorker(name, seen.run, scaling.scale_out if name in scaling.add_pods else ""))
    launcher = launcher_name(seen.job)
    if seen.launcher is not None or launcher in there or not targets or set(hosts) != set(targets):
        return made
    if launcher not in seen.services:
        made.append(CreateService(launcher))
    return [*made, WriteConfig(tuple(hosts)), CreateLauncher(seen.run, tuple(hosts))]


def _phased(status: JobStatus, seen: SeenJob, now: float) -> JobStatus:
    """The status with its phase, and with the conditions that tell how far a start has come."""
    targets = set(status.target_workers or ())
    if targets and targets <= seen.workers.keys():
        status = _noted(status, "WorkersCreated", now, f"{len(targets)} workers are created.")
    if seen.launcher is None:
        return status
    status = _noted(status, "WorkersReady", now, f"{len(targets)} workers run.")
    status = _noted(status, "LauncherCreated", now, "The launcher is created.")
    if not seen.launcher.running:
        return status
    phase = Phase.SCALING if status.current_scaler else Phase.RUNNING
    return _noted(replace(status, phase=phase.value), "Running", now, "The job is running.")


def _counted(status: JobStatus, seen: SeenJob) -> JobStatus:
    """The status with the pods that run."""
    counts, launcher = dict[str, dict[str, int]](), seen.launcher
    if launcher is not None:
        state = "succeeded" if launcher.succeeded else "failed" if launcher.failed else "active"
        counts["Launcher"] = {state: 1}
    if seen.running:
        counts["Worker"] = {"active": len(seen.running)}
    return replace(status, current_workers=list(seen.running), replica_statuses=counts)


def _noted(status: JobStatus, condition: str, now: float, message: str) -> JobStatus:
    """The status with a condition that is true now, which keeps the instant at which it became so."""
    before = status.conditions or []
    if any(one.type == condition and one.status == "True" for one in before):
        return status
    stamp = _stamp(now)
    noted = Condition(condition, "True", f"TrainingJob{condition}", message, stamp, stamp)
    return replace(status, conditions=[*(one for one in before if one.type != condition), noted])


def _closed(scales: Iterable[Scale], why: str) -> list[WriteScale]:
    return [failed_scale(scale, why) for scale in scales]


def _over(pod: Pod) -> bool:
    return pod.failed or pod.succeeded


def _in_order(workers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(workers, key=lambda name: (index_of(name), name)))


def _stamp(now: float) -> str:
    return instant_of(now).strftime("%Y-%m-%dT%H:%M:%SZ")
