"""Names and values in et-operator's resources."""

from enum import StrEnum

GROUP = "kai.alibabacloud.com"
VERSION = "v1alpha1"

GROUP_LABEL = "group-name"
JOB_LABEL = "training-job-name"
ROLE_LABEL = "training-job-role"
INDEX_LABEL = "replica-index"
SCALE_OUT_LABEL = "scaleout-name"

SUSPEND_ANNOTATION = "job-supervisor.kube-ai.io/job-suspended"
EDL = "/etc/edl"
"""Directory of the host list and of the script that prints it."""
CONTAINER = "et"


class TrainingJobRole(StrEnum):
    LAUNCHER = "launcher"
    WORKER = "worker"


class TrainingJobPhase(StrEnum):
    NEW = ""
    CREATED = "Created"
    RUNNING = "Running"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


class ScalePhase(StrEnum):
    NEW = ""
    SCALING = "Scaling"
    SUCCEEDED = "ScaleSucceeded"
    FAILED = "ScaleFailed"


class ReconcileStep(StrEnum):
    """Steps of a start, recorded as conditions of the job and not repeated."""

    WORKERS_CREATED = "WorkersCreated"
    WORKERS_READY = "WorkersReady"
    LAUNCHER_CREATED = "LauncherCreated"


def worker_name(job: str, index: int) -> str:
    return f"{job}-worker-{index}"


def index_of(worker: str) -> int:
    """Return the number at the end of a worker's name; -1 if there is none."""
    number = worker.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
