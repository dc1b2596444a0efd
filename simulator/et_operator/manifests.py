"""The manifests that the operator creates for a job: its ConfigMap, its workers, its launcher."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from simulator.et_operator.names import (
    CONTAINER,
    EDL,
    GROUP,
    GROUP_LABEL,
    INDEX_LABEL,
    JOB_LABEL,
    ROLE_LABEL,
    SCALE_OUT_LABEL,
    TrainingJobRole,
    index_of,
)
from simulator.et_operator.objects import OperatedTrainingJob, owner

_MOUNTED = "/etc/mpi"
_HOSTS_VOLUME = "training-job-hostfile"
_CONFIG_VOLUME = "training-job-config"
_DISCOVERY = f"#!/bin/bash\nwhile read line\ndo\necho $line\ndone < {EDL}/hostfile\n"
_INIT = (
    f"cp {_MOUNTED}/hostfile {EDL}/hostfile && chmod 600 {EDL}/hostfile"
    f" && cp {_MOUNTED}/discover_hosts.sh {EDL}/discover_hosts.sh && chmod +x {EDL}/discover_hosts.sh"
)
_INIT_RESOURCES = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}

Manifest = Mapping[str, Any]


def launcher_name(job: OperatedTrainingJob) -> str:
    return f"{job.metadata.name}-launcher"


def config_name(job: OperatedTrainingJob) -> str:
    """Return the name of the ConfigMap with the launcher's initial host list and script."""
    return f"{job.metadata.name}-config"


def host_list(job: OperatedTrainingJob, workers: Iterable[str]) -> str:
    """Return the host list: `host:slots` per line, in the order of the workers' numbers."""
    slots = job.spec.slots_per_worker
    return "".join(f"{worker}:{slots}\n" for worker in sorted(workers, key=index_of))


def config_data(job: OperatedTrainingJob, workers: Iterable[str]) -> Manifest:
    return {"hostfile": host_list(job, workers), "discover_hosts.sh": _DISCOVERY}


def config_metadata(job: OperatedTrainingJob) -> Manifest:
    return {"labels": {"app": job.metadata.name}, "ownerReferences": [owner(job)]}


def worker_metadata(job: OperatedTrainingJob, worker: str, scale_out: str = "") -> Manifest:
    made_for = {SCALE_OUT_LABEL: scale_out} if scale_out else {}
    return _metadata(job, TrainingJobRole.WORKER, {INDEX_LABEL: str(index_of(worker)), **made_for})


def launcher_metadata(job: OperatedTrainingJob) -> Manifest:
    return _metadata(job, TrainingJobRole.LAUNCHER, {})


def worker_spec(job: OperatedTrainingJob) -> Manifest:
    """Return the spec of a worker, which waits for ssh unless its template has a command. It is never restarted."""
    spec = _spec(job, TrainingJobRole.WORKER)
    spec["containers"][0].setdefault("command", ["sh", "-c", "/usr/sbin/sshd && sleep 365d"])
    return spec


def launcher_spec(job: OperatedTrainingJob) -> Manifest:
    """Return the spec of the launcher, whose init container copies host list and script from the ConfigMap."""
    spec = _spec(job, TrainingJobRole.LAUNCHER)
    container = spec["containers"][0]
    hosts, config = {"mountPath": EDL, "name": _HOSTS_VOLUME}, {"mountPath": _MOUNTED, "name": _CONFIG_VOLUME}
    container["volumeMounts"] = [*container.get("volumeMounts", []), hosts, config]
    spec["volumes"] = [
        *spec.get("volumes", []),
        {"name": _HOSTS_VOLUME, "emptyDir": {}},
        {"name": _CONFIG_VOLUME, "configMap": {"name": config_name(job)}},
    ]
    spec["initContainers"] = [
        {
            "name": "init-hostfile",
            "image": "alpine:3.10",
            "command": ["sh", "-c", _INIT],
            "resources": {"limits": _INIT_RESOURCES, "requests": _INIT_RESOURCES},
            "volumeMounts": [hosts, config],
        }
    ]
    return spec


def _spec(job: OperatedTrainingJob, role: TrainingJobRole) -> dict[str, Any]:
    spec: dict[str, Any] = deepcopy(_replicas(job, role)["spec"])
    spec["restartPolicy"] = "Never"
    spec["containers"][0]["name"] = spec["containers"][0].get("name", CONTAINER)
    return spec


def _metadata(job: OperatedTrainingJob, role: TrainingJobRole, labels: Mapping[str, str]) -> Manifest:
    template = _replicas(job, role).get("metadata", {})
    ours = {GROUP_LABEL: GROUP, JOB_LABEL: job.metadata.name, ROLE_LABEL: role.value, **labels}
    return {
        "labels": {**template.get("labels", {}), **ours},
        "annotations": template.get("annotations", {}),
        "ownerReferences": [owner(job)],
    }


def _replicas(job: OperatedTrainingJob, role: TrainingJobRole) -> dict[str, Any]:
    specs = job.spec.et_replica_specs
    return (specs.launcher if role is TrainingJobRole.LAUNCHER else specs.worker).template
