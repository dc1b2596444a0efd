"""A good manifest of each kind. The rules find nothing in it, except that some kinds are not supervised."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from supervisor.check.checking import check
from supervisor.check.job import NO_FACTS, CheckedFacts, CheckedJob, CheckedKind, JobFinding
from supervisor.check.manifests import job_of_command, jobs_in

Manifest = dict[str, Any]

MANAGED = "job-supervisor.kube-ai.io/managed-by-job-supervisor"
OPTED_IN = {MANAGED: "true"}
HOROVODRUN = (
    "horovodrun -np $(wc -l </etc/mpi/hostfile) --min-np 2 --slots-per-host 1 "
    "--host-discovery-script /etc/mpi/discover_hosts.sh"
)
ARENA = "horovodrun -np $((${workers}*${gpus})) --min-np 2 --host-discovery-script /etc/edl/discover_hosts.sh"
RUN = "kubeai-run --job a --max-workers 4 --"
TORCHRUN = "torchrun --rdzv-backend=kubeai --rdzv-id=a --nnodes=2:4 --nproc-per-node=8"


def template(command: str = "", **spec: Any) -> Manifest:
    container: Manifest = {"name": "main", "image": "none"}
    if command:
        container |= {"command": ["sh", "-c"], "args": [command]}
    return {"metadata": {"annotations": dict(OPTED_IN)}, "spec": {"containers": [container], **spec}}


def _object(version: str, kind: str, spec: Manifest) -> Manifest:
    metadata = {"name": "resnet", "namespace": "training", "annotations": dict(OPTED_IN)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _training_job() -> Manifest:
    launcher = template(f"{ARENA} python train.py")
    launcher["spec"]["containers"][0]["env"] = [{"name": "workers", "value": "4"}]
    worker = {"replicas": 4, "minReplicas": 2, "maxReplicas": 8, "restartPolicy": "Always", "template": template()}
    roles = {"launcher": {"template": launcher}, "worker": worker}
    return _object(
        "kai.alibabacloud.com/v1alpha1", "TrainingJob", {"restartPolicy": "OnFailure", "etReplicaSpecs": roles}
    )


def _mpi_job() -> Manifest:
    worker = {"replicas": 4, "template": template()}
    roles = {"Launcher": {"template": template(f"{HOROVODRUN} python train.py")}, "Worker": worker}
    made = _object("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": roles})
    made["metadata"]["annotations"]["job-supervisor.kube-ai.io/min-workers"] = "2"
    return made


def _pytorch_job() -> Manifest:
    master = {"replicas": 1, "restartPolicy": "OnFailure", "template": template("torchrun train.py")}
    worker = {"replicas": 3, "restartPolicy": "OnFailure", "template": template("torchrun train.py")}
    policy = {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "kubeai"}
    spec = {"elasticPolicy": policy, "pytorchReplicaSpecs": {"Master": master, "Worker": worker}}
    return _object("kubeflow.org/v1", "PyTorchJob", spec)


def _tf_job() -> Manifest:
    """Without a chief, which would fail the job: so it counts as succeeded with worker 0, of which a rule warns."""
    roles = {"Worker": {"replicas": 4, "restartPolicy": "OnFailure", "template": template("python train.py")}}
    return _object("kubeflow.org/v1", "TFJob", {"enableDynamicWorker": True, "tfReplicaSpecs": roles})


def _volcano_job() -> Manifest:
    task = {"name": "worker", "replicas": 4, "template": template(f"{TORCHRUN} train.py")}
    policies = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    return _object("batch.volcano.sh/v1alpha1", "Job", {"minAvailable": 2, "policies": policies, "tasks": [task]})


def _job() -> Manifest:
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    size = {"completionMode": "Indexed", "parallelism": 4, "completions": 4}
    spec = {
        **size,
        "backoffLimit": 6,
        "podFailurePolicy": {"rules": [ignored]},
        "template": template("python train.py"),
    }
    return _object("batch/v1", "Job", spec)


def _job_set() -> Manifest:
    spec = {"parallelism": 4, "completions": 4, "template": template(f"{TORCHRUN} train.py")}
    worker = {"name": "worker", "replicas": 1, "template": {"spec": spec}}
    policy = {"maxRestarts": 3}
    return _object("jobset.x-k8s.io/v1alpha2", "JobSet", {"failurePolicy": policy, "replicatedJobs": [worker]})


def _train_job() -> Manifest:
    """A list with its runtime, which has its pods."""
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {"metadata": {"labels": labels}, "spec": {"template": template(f"{TORCHRUN} train.py")}}
    jobs = {"failurePolicy": {"maxRestarts": 3}, "replicatedJobs": [{"name": "node", "template": node}]}
    version, spec = "trainer.kubeflow.org/v1alpha1", {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 4}}
    runtime = {"apiVersion": version, "kind": "ClusterTrainingRuntime", "metadata": {"name": "torch"}}
    items = [runtime | {"spec": {"template": {"spec": jobs}}}, _object(version, "TrainJob", spec)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


GOOD: dict[CheckedKind, Callable[[], Manifest]] = {
    CheckedKind.TRAINING_JOB: _training_job,
    CheckedKind.MPI_JOB: _mpi_job,
    CheckedKind.PYTORCH_JOB: _pytorch_job,
    CheckedKind.TF_JOB: _tf_job,
    CheckedKind.VOLCANO_JOB: _volcano_job,
    CheckedKind.JOB: _job,
    CheckedKind.JOB_SET: _job_set,
    CheckedKind.TRAIN_JOB: _train_job,
}

GOOD_COMMANDS = (
    f"{RUN} horovodrun -np {{workers}} --host-discovery-script kubeai-discover-hosts python train.py -np 4",
    f"{RUN} kubeai-each-host -- {TORCHRUN} train.py",
    f"{TORCHRUN} train.py --standalone",
    "horovodrun -np $PROCESSES --host-discovery-script ./hosts.sh python train.py",
    "torchrun --standalone --nproc-per-node=8 train.py",
)
"""The options of the training scripts look like those of a launcher, and are not."""

ALLOWED = {
    CheckedKind.TF_JOB: {"one-success-ends-job"},
}


def changed(made: Manifest, path: str, value: object) -> Manifest:
    """The manifest with another value at a path such as `spec.tasks.0.policies`; None removes what is there."""
    result = copy.deepcopy(made)
    target: Any = result
    *above, last = path.split(".")
    for name in above:
        target = target[int(name)] if isinstance(target, list) else target.setdefault(name, {})
    if isinstance(target, list):
        target[int(last)] = value
    elif value is None:
        target.pop(last, None)
    else:
        target[last] = value
    return result


def read(made: Manifest) -> CheckedJob:
    (job,) = jobs_in(made)
    return job


def found(made: Manifest | str, facts: CheckedFacts = NO_FACTS) -> Sequence[JobFinding]:
    """The findings of a manifest, or of a command line."""
    return check(job_of_command(made) if isinstance(made, str) else read(made), facts)


def ids(findings: Sequence[JobFinding]) -> set[str]:
    return {finding.rule for finding in findings}
