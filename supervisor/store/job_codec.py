"""The form of jobs in custom resources: one SupervisedJob for each job."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import ObjectKey
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Decision, Observed, SupervisedJob
from supervisor.store.codec import CustomResource, Record
from supervisor.store.conditions import Condition, job_conditions
from supervisor.store.fields import Fields, decode, encode
from supervisor.store.names import bare_name, job_key, job_name, owners
from supervisor.store.specs import sound, spec_fields, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """All hosts of a job, each once: three lists that repeat them made 4,000 workers three times as large."""

    workers: Sequence[Host] = ()
    excluded: Sequence[Host] = ()
    waiting: Sequence[Host] = ()
    missing: Sequence[Host] = ()
    missing_excluded: Sequence[Host] = ()

    @classmethod
    def of(cls, job: SupervisedJob) -> Self:
        listed, granted, excluded = job.observed.hosts, job.decision.hosts, job.decision.exclusions
        used = granted - excluded
        return cls(
            workers=sorted(used & listed),
            excluded=sorted(excluded & listed),
            waiting=sorted(listed - granted),
            missing=sorted(used - listed),
            missing_excluded=sorted(excluded - listed),
        )

    @property
    def listed(self) -> frozenset[Host]:
        """The launcher's list."""
        return frozenset().union(self.workers, self.excluded, self.waiting)

    @property
    def granted(self) -> frozenset[Host]:
        """The hosts that are the job's to use, with the excluded ones."""
        return self.exclusions.union(self.workers, self.missing)

    @property
    def exclusions(self) -> frozenset[Host]:
        return frozenset().union(self.excluded, self.missing_excluded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    uid: str
    hosts: Hosts
    observed: Fields
    decision: Fields
    conditions: tuple[Condition, ...] = ()


def read_job(data: bytes | msgspec.Raw, home: str | None = None) -> Record[SupervisedJob]:
    """Reads a job of the supervisor whose namespace is `home`, or of any supervisor.

    Raises:
        msgspec.MsgspecError: It does not decode.
    """
    resource = msgspec.json.decode(data, type=CustomResource)
    key, spec = resource.metadata.key, decode(resource.spec, _Spec)
    name = job_name(key, spec.name, key.namespace if home is None else home)
    if name is None or resource.status is None:
        return Record(resource, None, ours=name is not None)
    status = decode(resource.status, _Status)
    if status.uid != spec.uid:
        return Record(resource, None)
    hosts, observed = status.hosts, status.observed
    if observed.get("result") is not None and observed.get("ended_at") is None:
        # An earlier version has stored no end, but when its phase became a final one.
        observed["ended_at"] = next((each.last_transition_time for each in status.conditions if _says_over(each)), None)
    value = SupervisedJob(
        name=name,
        uid=spec.uid,
        spec=spec_of(decode(resource.spec, Fields)),
        observed=msgspec.convert({**observed, "hosts": hosts.listed}, Observed),
        decision=sound(
            msgspec.convert({**status.decision, "hosts": hosts.granted, "exclusions": hosts.exclusions}, Decision)
        ),
    )
    return Record(resource, value, status.conditions)


def _says_over(condition: Condition) -> bool:
    return (condition.type, condition.status) == ("Finished", "True")


@dataclass(frozen=True, slots=True)
class JobCodec:
    """See `Codec`; `home` is the namespace of stand-alone jobs, `now` reads Unix seconds.

    `kinds` are the API resources of the other jobs, by the lower-case kind: a job's object owns its resource.
    """

    home: str
    now: Callable[[], float]
    kinds: Mapping[str, Resource]

    def id(self, value: SupervisedJob) -> JobName:
        return value.name

    def rank(self, value: SupervisedJob) -> int:  # noqa: ARG002 - Codec
        return 0

    def object_key(self, value: SupervisedJob) -> ObjectKey:
        return job_key(value.name, self.home)

    def spare_key(self, key: ObjectKey) -> ObjectKey:
        return key

    def metadata(self, value: SupervisedJob) -> Mapping[str, object]:
        found = owners(value, self.kinds)
        return {"ownerReferences": found} if found else {}

    def encode(self, value: SupervisedJob, before: Record[SupervisedJob] | None, epoch: int) -> tuple[Fields, Fields]:
        spec = {"epoch": epoch, "name": bare_name(value.name), "uid": value.uid, **encode(spec_fields(value.spec))}
        observed, decision, hosts = encode(value.observed), encode(value.decision), Hosts.of(value)
        del observed["hosts"], decision["hosts"], decision["exclusions"]
        known = before.conditions if before and before.value and before.value.uid == value.uid else ()
        conditions = job_conditions(value, known, self.now())
        return spec, {
            "epoch": epoch,
            "uid": value.uid,
            "workers": len(hosts.workers) + len(hosts.missing),
            "excluded": len(hosts.exclusions),
            "hosts": encode(hosts),
            "observed": observed,
            "decision": decision,
            "conditions": [encode(each) for each in conditions],
        }

    def decode(self, data: bytes | msgspec.Raw) -> Record[SupervisedJob]:
        return read_job(data, self.home)
