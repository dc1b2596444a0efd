"""Makes the objects of a job: its Secret, Services, ConfigMap, pods and PodGroup. Pure.

The launcher finds its list of hosts in `/etc/edl`, as with et-operator. A volume shows it each later list within a
second, and `discover_hosts.sh` takes the newer of the two.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from supervisor.jobs.trainingjob.discovery import DISCOVERY, LIVE
from trainingjob_operator.api import (
    GROUP,
    GROUP_LABEL,
    HOSTS_ANNOTATION,
    INDEX_LABEL,
    JOB_LABEL,
    KEYS_ANNOTATION,
    LAUNCHER,
    ROLE_LABEL,
    RUN_LABEL,
    SCALE_OUT_LABEL,
    TRAINING_JOBS,
    WORKER,
    Scale,
    TrainingJob,
    index_of,
)

Manifest = Mapping[str, Any]

EXCLUDED_ANNOTATION = "job-supervisor.kube-ai.io/excluded-hosts"
"""On the launcher's pod: hosts that the job supervisor leaves out of the list."""

HOSTFILE_COMMAND = ("sh", "-c", 'printf %s "$1" > "${EDL:-/etc/edl}/hostfile"', "sh")
"""Writes the list in a launcher of et-operator; its argument is the list."""

_CONTAINER = "et"
_EDL, _CONFIG, _DEEPSPEED, _SSH = "/etc/edl", "/etc/mpi", "/job", "/root/.ssh"
_SSHD = ["sh", "-c", "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e"]
"""The command of a worker without one. As the first process, sshd ends with the pod, and not only after its grace."""

_COPY = (
    f"cp {_CONFIG}/hostfile {_CONFIG}/discover_hosts.sh {_EDL}/ && chmod 600 {_EDL}/hostfile"
    f" && chmod 755 {_EDL}/discover_hosts.sh && cp {_CONFIG}/deepspeed-hostfile {_DEEPSPEED}/hostfile"
)
_COPY_RESOURCES = {"cpu": "100m", "memory": "64Mi"}

_SDK_PORT = 9009
"""On which the first version of the SDK listens; its Service has to have it."""


class TemplateError(ValueError):
    """A pod template has no containers, so no pod can be made from it."""


def launcher_name(job: TrainingJob) -> str:
    """Returns the name of the launcher's pod and Service."""
    return f"{job.metadata.name}-launcher"


def launcher_container(job: TrainingJob) -> str:
    """Returns the name of the launcher's container.

    Raises:
        TemplateError: The template has none.
    """
    return str(_containers(job, LAUNCHER)[0].get("name", _CONTAINER))


def config_name(job: TrainingJob) -> str:
    """Returns the name of the ConfigMap."""
    return f"{job.metadata.name}-config"


def ssh_secret(job: TrainingJob) -> str:
    """Returns the name of the Secret with the keys: the one that the job names, or else one of the job's own."""
    return job.metadata.annotations.get(KEYS_ANNOTATION) or job.metadata.name


def hosts_text(hosts: Iterable[str], slots: int) -> str:
    """Returns the list of hosts as Horovod reads it."""
    return "".join(f"{host}:{slots}\n" for host in hosts)


def hosts_of(text: str) -> tuple[str, ...]:
    """Returns the hosts of such a list."""
    return tuple(line.partition(":")[0] for line in text.split())


def script_command(job: TrainingJob, scale: Scale, workers: Iterable[str]) -> list[str]:
    """Returns the command that runs the script of a scaling in a launcher.

    The script gets its own arguments and then the workers that come or go, as `worker:slots,worker:slots`.
    """
    variables = [f"{one.name}={one.value}" for one in scale.spec.env]
    listed = ",".join(f"{worker}:{job.slots}" for worker in workers)
    limited = ["timeout", str(scale.script_seconds), "sh", "-c", f'sh {scale.spec.script} "$0"', listed]
    return ["env", *variables, *limited] if variables else limited


def owned(job: TrainingJob) -> Manifest:
    """Returns the metadata by which an object belongs to a job."""
    labels = {"app": job.metadata.name, GROUP_LABEL: GROUP, JOB_LABEL: job.metadata.name}
    return {"labels": labels, "ownerReferences": [owner(job)]}


def owner(job: TrainingJob) -> Manifest:
    """Returns the owner reference of the objects of a job."""
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def config_data(job: TrainingJob, hosts: Iterable[str]) -> Mapping[str, str]:
    """Returns what the launcher starts with: the list in two forms, and the script that Horovod runs each second."""
    hosts = tuple(hosts)
    return {
        "hostfile": hosts_text(hosts, job.slots),
        "deepspeed-hostfile": "".join(f"{host} slots={job.slots}\n" for host in hosts),
        "discover_hosts.sh": DISCOVERY,
    }


def service_spec(job: TrainingJob, pod: str) -> Manifest:
    """Returns the spec of the headless Service of one pod."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _identity(job, pod),
        "ports": [{"name": "kubeai-service-port", "port": _SDK_PORT, "targetPort": _SDK_PORT}],
    }


def worker_metadata(job: TrainingJob, worker: str, run: int, scale_out: str) -> Manifest:
    """Returns the metadata of a worker's pod, but for its name."""
    labels = {SCALE_OUT_LABEL: scale_out} if scale_out else {}
    return _metadata(job, worker, run, labels, {})


def launcher_metadata(job: TrainingJob, run: int, hosts: Iterable[str]) -> Manifest:
    """Returns the metadata of the launcher's pod, but for its name."""
    return _metadata(job, launcher_name(job), run, {}, {HOSTS_ANNOTATION: hosts_text(hosts, job.slots)})


def worker_spec(job: TrainingJob) -> Manifest:
    """Returns the spec of a worker's pod: that of its template, with ssh.

    Raises:
        TemplateError: The template is not usable.
    """
    spec = _pod_spec(job, WORKER)
    spec["containers"][0].setdefault("command", _SSHD)
    return spec


def launcher_spec(job: TrainingJob) -> Manifest:
    """Returns the spec of the launcher's pod: that of its template, with ssh and its lists of hosts.

    Raises:
        TemplateError: The template is not usable.
    """
    spec = _pod_spec(job, LAUNCHER)
    container = spec["containers"][0]
    edl = {"mountPath": _EDL, "name": "training-job-hostfile"}
    config = {"mountPath": _CONFIG, "name": "training-job-config"}
    deepspeed = {"mountPath": _DEEPSPEED, "name": "deepspeed-hostfile"}
    live = {"mountPath": LIVE, "name": "training-job-hosts", "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), edl, config, deepspeed, live]
    shown = {"hostfile": HOSTS_ANNOTATION, "excluded-hosts": EXCLUDED_ANNOTATION}
    files = [
        {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}} for file, name in shown.items()
    ]
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": edl["name"], "emptyDir": {}},
        {"name": deepspeed["name"], "emptyDir": {}},
        {"name": config["name"], "configMap": {"name": config_name(job)}},
        {"name": live["name"], "downwardAPI": {"items": files}},
    ]
    # The launcher's own image: it has a shell, and no other image has to be pulled.
    copy = {
        "name": "init-hostfile",
        "image": container.get("image", ""),
        "command": ["sh", "-c", _COPY],
        "resources": {"limits": _COPY_RESOURCES, "requests": _COPY_RESOURCES},
        "volumeMounts": [edl, config, deepspeed],
    }
    if "imagePullPolicy" in container:
        copy["imagePullPolicy"] = container["imagePullPolicy"]
    spec["initContainers"] = [copy, *(spec.get("initContainers") or [])]
    return spec


def _pod_spec(job: TrainingJob, role: str) -> dict[str, Any]:
    """The spec of a role's template with the keys of the job. The pod itself is never restarted: the job is."""
    containers = deepcopy(_containers(job, role))
    spec: dict[str, Any] = {
        **deepcopy(_template(job, role)["spec"]),
        "containers": containers,
        "restartPolicy": "Never",
    }
    container = containers[0]
    container.setdefault("name", _CONTAINER)
    files = {"id_rsa": "id_rsa", "id_rsa.pub": "id_rsa.pub", "authorized_keys": "id_rsa.pub", "config": "config"}
    items = [{"key": key, "path": f".ssh/{file}"} for file, key in files.items()]
    secret = {"secretName": ssh_secret(job), "defaultMode": 0o600, "items": items}
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": "training-job-ssh", "secret": secret}]
    mount = {"mountPath": _SSH, "name": "training-job-ssh", "subPath": ".ssh"}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    return spec


def _template(job: TrainingJob, role: str) -> Mapping[str, Any]:
    replicas = job.spec.et_replica_specs
    return (replicas.launcher if role == LAUNCHER else replicas.worker).template


def _containers(job: TrainingJob, role: str) -> list[dict[str, Any]]:
    spec = _template(job, role).get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        raise TemplateError(f"The template of the {role} has no containers.")
    return containers


def _metadata(
    job: TrainingJob, pod: str, run: int, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    role = LAUNCHER if pod == launcher_name(job) else WORKER
    given: Mapping[str, Any] = _template(job, role).get("metadata") or {}
    ours = {GROUP_LABEL: GROUP, **_identity(job, pod), RUN_LABEL: str(run), **labels}
    return {
        "labels": {**(given.get("labels") or {}), **ours},
        "annotations": {**(given.get("annotations") or {}), **annotations},
        "ownerReferences": [owner(job)],
    }


def _identity(job: TrainingJob, pod: str) -> dict[str, str]:
    """The labels that one pod of a job has in each of its runs."""
    if pod == launcher_name(job):
        return {JOB_LABEL: job.metadata.name, ROLE_LABEL: LAUNCHER}
    return {JOB_LABEL: job.metadata.name, ROLE_LABEL: WORKER, INDEX_LABEL: str(index_of(pod))}
