"""Indexed Jobs as jobs of replicas, and how they are read: whatever the API server takes must not stop the rest."""

from datetime import datetime

import msgspec

from servicekit.kubernetes.objects import Owner
from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body
from supervisor.jobs import manifest
from supervisor.jobs.manifest import PodTemplate, decoded
from supervisor.jobs.observation import refusal
from supervisor.jobs.replicated.objects import Condition, ReplicatedJob, ReplicatedSpec

_CONTROLLER = "kubernetes.io/job-controller"
_GROUP = "batch"
_CRON_JOB = "CronJob"
_INDEXED = "Indexed"
_PODS = "Pod"
_CONDITIONS = {"Complete": Condition.SUCCEEDED}


class _Spec(Body, frozen=True):
    template: PodTemplate
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    max_failed_indexes: int | None = None
    success_policy: dict[str, msgspec.Raw] | None = None
    managed_by: str | None = None


class _Status(Body, frozen=True):
    conditions: tuple[manifest.Condition, ...] | None = None
    start_time: datetime | None = None


def read_batch_job(data: bytes | msgspec.Raw) -> ReplicatedJob:
    """Returns a Job from the API server's JSON.

    It has no spec if a job of another kind has made it, which is supervised itself, or if its pods are no run that
    could be stopped and started as one.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, spec, status = read.metadata, decoded(read.spec, _Spec), decoded(read.status, _Status) or _Status()
    return ReplicatedJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=spec is not None and spec.managed_by not in (None, _CONTROLLER),
        conditions=frozenset(_CONDITIONS.get(each.type, each.type) for each in status.conditions or () if each.holds),
        started_at=status.start_time,
        spec=None if spec is None or _is_part(metadata.owner) else _spec(spec),
    )


def _is_part(owner: Owner | None) -> bool:
    """Whether the Job is a part of another job, such as its launcher. A CronJob makes jobs of their own."""
    return owner is not None and not owner.is_of(_GROUP, _CRON_JOB)


def _spec(spec: _Spec) -> ReplicatedSpec | None:
    pods = spec.parallelism or 0
    if spec.completion_mode != _INDEXED or pods != spec.completions:
        return None
    try:
        demand = spec.template.demand()
    except (msgspec.MsgspecError, ValueError):
        return None
    return ReplicatedSpec(
        sizes={_PODS: pods},
        refusal=refusal([pods]),
        scaled=_PODS,
        suspended=bool(spec.suspend),
        demands={_PODS: demand},
        annotations=(spec.template.annotations,),
        # Both may speak of indices that a smaller Job has not, which the API server refuses.
        has_fixed_size=spec.max_failed_indexes is not None or spec.success_policy is not None,
    )
