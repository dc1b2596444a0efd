"""What another number of workers takes: pure, from a job to the changes of its spec, and its lists of hosts."""

from collections.abc import Iterable, Mapping, Sequence

from servicekit.bounds import MAX_SLOTS, whole
from supervisor.cluster.annotations import REQUESTED
from supervisor.domain.ids import Host
from supervisor.jobs.trainingjob.objects import SIZE, Template, TrainingJob, TrainingJobSpec

_ANNOTATION = "/metadata/annotations/" + REQUESTED.replace("~", "~0").replace("/", "~1")
_REPLICAS = "/spec/etReplicaSpecs/worker/replicas"

Operation = Mapping[str, object]


def resized(job: TrainingJob, asked: TrainingJobSpec, workers: int, requested: int) -> list[Operation]:
    """The changes after which the job has so many workers; none where it has. Its own number is kept beside it."""
    changes: list[Operation] = []
    if asked.replicas != workers:
        changes += [{"op": "replace", "path": _REPLICAS, "value": workers}]
        changes += [*_told(asked.launcher, asked, workers), *_told(asked.worker, asked, workers)]
    noted = None if workers == requested else str(requested)
    if job.annotations.get(REQUESTED) != noted:
        changes += [{"op": "remove", "path": _ANNOTATION}] if noted is None else [_noting(noted)]
    return changes


def _noting(noted: str) -> Operation:
    return {"op": "add", "path": _ANNOTATION, "value": noted}


def _told(template: Template, asked: TrainingJobSpec, workers: int) -> Iterable[Operation]:
    """A variable that says something else than the number of workers is not meant."""
    size = template.variables.get(SIZE)
    if size is not None and size.value == str(asked.replicas):
        yield {"op": "replace", "path": size.path, "value": str(workers)}


def host_lists(data: Mapping[str, str], hosts: Sequence[Host], slots: int) -> dict[str, str]:
    """Those entries of the job's ConfigMap that name hosts, and do not name just these."""
    slots = _slots(data.get("hostfile", ""), slots)
    wanted = {
        "hostfile": "".join(f"{host}:{slots}\n" for host in hosts),
        "deepspeed-hostfile": "".join(f"{host} slots={slots}\n" for host in hosts),
    }
    return {name: text for name, text in wanted.items() if name in data and data[name] != text}


def _slots(hostfile: str, otherwise: int) -> int:
    """As the operator wrote it."""
    _, _, slots = hostfile.partition("\n")[0].rpartition(":")
    return whole(slots, MAX_SLOTS) or otherwise
