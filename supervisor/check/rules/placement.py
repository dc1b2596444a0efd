"""Where the pods of a job may run."""

from collections.abc import Iterator

from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Role
from supervisor.check.values import items, mapping, text

_SPOT_LABELS = {
    "alibabacloud.com/compute-qos": "best-effort",
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacitytype": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",
}
"""Labels of nodes that may be reclaimed, in lower case; the first one is a label of pods."""


@rule("launcher-on-spot", Severity.WARNING, "a launcher, master or chief on nodes that may be reclaimed")
def launcher_on_spot(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role in job.roles:
        chosen = next((f"{name}: {value}" for name, value in _chosen(role) if _is_spot(name, value)), None)
        if role.leads and chosen is not None:
            yield Problem(
                f"{role.path}.template",
                f"The {role.name} runs on capacity that may be reclaimed ({chosen}), and its loss stops the whole job.",
                f"Place the {role.name} on ordinary nodes; it needs no accelerator in a job with workers.",
            )


def _chosen(role: Role) -> Iterator[tuple[str, str]]:
    """The labels that nodes must have, and those of the pod itself."""
    for name, value in {**role.labels, **mapping(role.pod, "nodeSelector")}.items():
        yield name, str(value)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for term in items(role.pod, "affinity", "nodeAffinity", required, "nodeSelectorTerms"):
        for expression in items(term, "matchExpressions"):
            values = items(expression, "values")
            # Only if every value is one of spot, the pod cannot run elsewhere.
            if text(expression, "operator") == "In" and len(values) == 1:
                yield text(expression, "key"), str(values[0])


def _is_spot(name: str, value: str) -> bool:
    return _SPOT_LABELS.get(name.lower()) == value.lower()
