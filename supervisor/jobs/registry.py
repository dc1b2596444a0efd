"""The kinds of jobs that are supervised on a cluster: one line each."""

from collections.abc import Mapping
from enum import StrEnum

from servicekit.kubernetes.client import Resource
from supervisor.failpoints import At
from supervisor.jobs.kind import AnyKind
from supervisor.jobs.mpijob.kind import MpiJobKind
from supervisor.jobs.pytorchjob.kind import PyTorchJobKind
from supervisor.jobs.tfjob.kind import TfJobKind
from supervisor.jobs.trainingjob.kind import TrainingJobKind

KINDS: tuple[AnyKind, ...] = (TrainingJobKind(), MpiJobKind(), PyTorchJobKind(), TfJobKind())


def pod_labels() -> frozenset[str]:
    """The labels of pods that the kinds need."""
    return frozenset(label for kind in KINDS for label in kind.pod_labels)


def resources() -> Mapping[str, Resource]:
    """The API resource of each kind, by the kind's name."""
    return {kind.name: kind.resource for kind in KINDS}


def failpoints() -> tuple[StrEnum, ...]:
    """Every failpoint of the supervisor."""
    return (*At, *(point for kind in KINDS for point in kind.failpoints))
