"""A cluster in memory, in which the operator's changes are made, and pods run and end. A model, no API server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from trainingjob_operator import manifests
from trainingjob_operator.api import (
    HOSTS_ANNOTATION,
    SCALE_OUT_LABEL,
    Pod,
    Scale,
    TrainingJob,
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
    RunScript,
    WriteConfig,
    WriteHosts,
    WriteScale,
    WriteStatus,
)
from trainingjob_operator.reconcile import SeenJob, reconcile, told_later

_TEMPLATE = {"spec": {"containers": [{"name": "et", "image": "train"}]}}
_MOST_STEPS = 500
_GRACE_SECONDS = 30


def training_job(replicas: int = 4, *, worker: dict[str, Any] | None = None, **spec: Any) -> TrainingJob:
    """Makes a job of that size."""
    roles = {
        "launcher": {"replicas": 1, "template": _TEMPLATE},
        "worker": {"replicas": replicas, "minReplicas": 1, "restartPolicy": "Always", "template": _TEMPLATE}
        | (worker or {}),
    }
    metadata = {"name": "job", "namespace": "home", "uid": "job-uid", "resourceVersion": "1"}
    content = {"metadata": metadata, "spec": {"etReplicaSpecs": roles, **spec}}
    return msgspec.convert(content, TrainingJob)


def scale(kind: str, name: str, **spec: Any) -> Scale:
    """Makes a ScaleIn or ScaleOut of the job."""
    metadata = {"name": name, "namespace": "home", "uid": f"{kind}-{name}", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": {"selector": {"name": "job"}, **spec}}, Scale)


@dataclass
class World:
    """One job, and the machines that run its pods.

    Attributes:
        now: Unix seconds.
        room: How many workers can run; further ones stay pending.
        used: The names of workers that were created, by run.
        known: The names that were on a launcher's list, by its uid.
        made: The changes so far.
        overwritten: Whether another operator has written the status, and numbers that were used are forgotten.
    """

    job: TrainingJob
    now: float = 1_700_000_000.0
    room: int = 100
    pods: dict[str, Pod] = field(default_factory=dict)
    services: set[str] = field(default_factory=set)
    scales: dict[str, Scale] = field(default_factory=dict)
    has_keys: bool = False
    used: dict[int, list[str]] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)
    made: list[Change] = field(default_factory=list)
    overwritten: bool = False
    _uids: Any = field(default_factory=count)

    @property
    def phase(self) -> str:
        return self.job.status.phase

    @property
    def launcher(self) -> Pod | None:
        return self.pods.get("job-launcher")

    @property
    def running(self) -> list[str]:
        return sorted(name for name, pod in self.pods.items() if pod.running and not pod.is_launcher)

    @property
    def listed(self) -> list[str]:
        """The hosts on the launcher's list."""
        assert self.launcher is not None
        return list(manifests.hosts_of(self.launcher.metadata.annotations[HOSTS_ANNOTATION]))

    def seen(self) -> SeenJob:
        scales = tuple(one for one in self.scales.values() if not one.over)
        return SeenJob(self.job, tuple(self.pods.values()), frozenset(self.services), self.has_keys, scales)

    def look(self) -> Outcome:
        return reconcile(self.seen(), self.now)

    def step(self, only: int | None = None, *, tells: bool = True) -> Sequence[Change]:
        """Reconciles once, and makes only so many of the changes, as if the operator ended then.

        Unless it `tells`, it leaves a status that says only how far the pods have come for later.
        """
        outcome = self.look()
        if not tells:
            outcome = told_later(self.job.status, outcome, self.now)
        changes = outcome.changes[:only]
        for change in changes:
            self.apply(change)
        return changes

    def settle(self, cut: Callable[[int], int | None] = lambda _step: None) -> None:
        """Reconciles, lets pods start and end, and lets time pass, until nothing changes any more."""
        for number in range(_MOST_STEPS):
            if self.step(cut(number)) or self.kubelet():
                continue
            outcome = self.look()
            if outcome.changes:
                continue
            if outcome.again_at is None:
                return
            assert outcome.again_at > self.now, "it asks to be called again at once, and would do nothing"
            self.now = outcome.again_at
        raise AssertionError(f"it does not come to rest: {self.made[-5:]}")

    def kubelet(self) -> bool:
        """Starts one pending pod or ends one that is being deleted; returns whether there was one."""
        for name, pod in self.pods.items():
            if pod.deleting:
                del self.pods[name]
                return True
            if pod.status.phase == "Pending" and (pod.is_launcher or len(self.running) < self.room):
                self.pods[name] = replace(pod, status=replace(pod.status, phase="Running"))
                return True
        return False

    def apply(self, change: Change) -> None:
        """Makes a change like the controller does with an API server."""
        self.made.append(change)
        match change:
            case WriteStatus(status):
                self.job = replace(self.job, status=status)
            case WriteScale(one, status):
                self.scales[one.metadata.uid] = replace(one, status=status)
            case CreateKeys():
                self.has_keys = True
            case CreateService(pod):
                self.services.add(pod)
            case CreateWorker(name, run, scale_out):
                # A host that this launcher has never listed is known to nobody, and its pod may be made anew.
                launcher = self.launcher
                is_known = launcher is not None and launcher.run == run and name in self.known[launcher.metadata.uid]
                assert not is_known or self.overwritten, f"{name} is used twice"
                self.used.setdefault(run, []).append(name)
                self._create(name, manifests.worker_metadata(self.job, name, run, scale_out))
            case CreateLauncher(run, hosts):
                assert set(hosts) == set(self.running), "the launcher starts without its workers"
                self._create("job-launcher", manifests.launcher_metadata(self.job, run, hosts))
                self.known[self.pods["job-launcher"].metadata.uid] = set(hosts)
            case DeletePod(pod):
                self.delete(pod.name)
            case DeleteService(name):
                assert name not in self.pods
                self.services.remove(name)
            case WriteHosts(launcher, text, _by_command):
                assert manifests.hosts_of(text), "an empty list ends the job"
                self.known[launcher.metadata.uid].update(manifests.hosts_of(text))
                self.annotate(launcher.name, text)
            case WriteConfig() | RunScript():
                pass
            case _:
                raise AssertionError(change)

    def annotate(self, name: str, text: str) -> None:
        pod = self.pods[name]
        metadata = replace(pod.metadata, annotations={**pod.metadata.annotations, HOSTS_ANNOTATION: text})
        self.pods[name] = replace(pod, metadata=metadata)

    def delete(self, name: str) -> None:
        """Asks for the deletion of a pod."""
        pod = self.pods.get(name)
        if pod is not None and not pod.deleting:
            ends = datetime.fromtimestamp(self.now + _GRACE_SECONDS, UTC)
            metadata = replace(pod.metadata, deletion_timestamp=ends, deletion_grace_period_seconds=_GRACE_SECONDS)
            self.pods[name] = replace(pod, metadata=metadata)

    def lose(self, name: str) -> None:
        """A machine is gone, and its pod with it."""
        self.pods.pop(name, None)

    def end(self, name: str, phase: str, **status: Any) -> None:
        """A pod ends by itself, now."""
        at = datetime.fromtimestamp(self.now, UTC).isoformat()
        content = {"phase": phase, "containerStatuses": [{"state": {"terminated": {"finishedAt": at}}}], **status}
        self.pods[name] = replace(self.pods[name], status=msgspec.convert(content, type(self.pods[name].status)))

    def evict(self, name: str) -> None:
        """A machine is reclaimed: its pod fails with the reason."""
        since = datetime.fromtimestamp(self.now, UTC).isoformat()
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "lastTransitionTime": since,
        }
        self.end(name, "Failed", reason="Terminated", conditions=[condition])

    def suspend(self, *, suspended: bool) -> None:
        self.job = replace(self.job, spec=replace(self.job.spec, suspend=suspended))

    def resize(self, replicas: int) -> None:
        roles = self.job.spec.et_replica_specs
        worker = replace(roles.worker, replicas=replicas)
        self.job = replace(self.job, spec=replace(self.job.spec, et_replica_specs=replace(roles, worker=worker)))

    def ask(self, one: Scale) -> None:
        self.scales[one.metadata.uid] = one

    def _create(self, name: str, metadata: manifests.Manifest) -> None:
        assert name not in self.pods, f"{name} is there already"
        meta = {
            **metadata,
            "name": name,
            "namespace": "home",
            "uid": f"{name}-{next(self._uids)}",
            "resourceVersion": "1",
        }
        meta["ownerReferences"] = list(metadata["ownerReferences"])
        self.pods[name] = msgspec.convert({"metadata": meta, "status": {"phase": "Pending"}}, Pod)


def scale_out_of(pod: Pod) -> str:
    """Returns the ScaleOut that a pod was made for."""
    return pod.metadata.labels.get(SCALE_OUT_LABEL, "")
