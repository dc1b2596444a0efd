"""Computes the patch for a new pod: our directory, and the nodes that it avoids. Pure.

A patch only adds. It keeps new pods off nodes that will be reclaimed, and if possible off nodes that may be.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from supervisor.cluster.annotations import ADDRESS, CA, DISCOVERY_SCRIPT, EXCLUDED, opts_in
from supervisor.jobs.kind import HostDiscovery, JobPodRole
from supervisor.jobs.registry import KINDS
from supervisor.webhook.pods import DIRECTORY, MIRROR, VOLUME, NewPod, Term

_TOKEN_SECONDS = 3600
"""The life of a token. The kubelet renews it after four fifths of that."""

_EXECUTABLE = 0o555
_EXCLUSIONS = "excluded-hosts"

_KEEPER, _HOST_IP = "KUBEAI_KEEPER", "KUBEAI_HOST_IP"
"""Variables: the address of the state keeper on the pod's node, and that of the node, which it is made of."""

MAX_NODES = 100
"""Nodes that one pod names in all its terms together. These take 10 KiB, and the scheduler compares each with every
node. A pod that lands on another noticed node is handled as without the webhook."""

_NAME = "metadata.name"
_HOSTNAME = "kubernetes.io/hostname"
_AFFINITY = "/spec/affinity"
_NODES = f"{_AFFINITY}/nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HINT_WEIGHT = 10
"""A weight out of 100. A preference of the job's own usually counts for more."""


class AddOperation(msgspec.Struct, frozen=True, tag_field="op", tag="add"):
    """Adds a value, or appends one to a list."""

    path: str
    value: object


@dataclass(frozen=True, slots=True)
class AvoidedNodes:
    """Nodes that new pods avoid, the most important ones first.

    Attributes:
        noticed: No pod may start there.
        hinted: A reclaim may come, at a time that nobody knows: a pod starts there only if there is no other room.
    """

    noticed: Sequence[str] = ()
    hinted: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInjection:
    """The values that the webhook adds to a new pod.

    Attributes:
        address: The URL of the supervisor.
        ca: The CAs of its certificate as PEM; empty if the system's CAs are enough.
        audience: The audience of the tokens.
        keeper_port: The port of the state keeper on each node; None without one.
        avoid: The nodes that new pods avoid.
    """

    address: str
    ca: str
    audience: str
    keeper_port: int | None = None
    avoid: AvoidedNodes = field(default_factory=AvoidedNodes)


@dataclass(frozen=True, slots=True)
class PodMutation:
    """The patch, and warnings for the creator of the pod about parts that the webhook could not change."""

    patch: Sequence[AddOperation] = ()
    warnings: Sequence[str] = ()


def mutation_for(pod: NewPod, injection: PodInjection) -> PodMutation:
    """Returns the mutation of an opted-in pod. It changes nothing that the pod has, and adds nothing twice."""
    annotations = pod.metadata.annotations or {}
    if not opts_in(annotations) or MIRROR in annotations:
        return PodMutation()
    identity = _identity(pod, injection)
    keeper = _keeper_patch(pod, injection)
    return PodMutation((*identity.patch, *keeper, *avoidance_patch(pod, injection.avoid)), identity.warnings)


def _identity(pod: NewPod, injection: PodInjection) -> PodMutation:
    volume = pod.volume(VOLUME)
    if volume is not None and not volume.has_token_for(injection.audience):
        return PodMutation(warnings=[f"the pod has its own volume {VOLUME}, so ours is not added"])
    obstacles = {container_path.path: container_path.container.obstacle() for container_path in pod.containers}
    warnings = [obstacle for obstacle in obstacles.values() if obstacle is not None]
    # The host discovery of the pod, if it is a launcher of a kind that has one.
    launched = (kind.discovery for kind in KINDS if kind.role(pod.metadata.labels or {}) is JobPodRole.LAUNCHER)
    discovery = next((each for each in launched if each is not None), None)
    if discovery is not None and volume is not None and not volume.shown >= {discovery.file, _EXCLUSIONS}:
        discovery = None  # The volume was written by hand: a file that it lacks cannot be mounted.
    mounts, discovers = list[AddOperation](), False
    for container_path in pod.containers:
        container, missing = container_path.container, list[Mapping[str, object]]()
        if obstacles[container_path.path] is not None:
            continue
        if not container.mounted_at(DIRECTORY):
            missing.append({"name": VOLUME, "mountPath": DIRECTORY, "readOnly": True})
        if discovery is not None and container.discovers(discovery.directory, discovery.file):
            discovers, path = True, f"{discovery.directory}/{discovery.file}"
            if not container.mounted_at(path):
                missing.append({"name": VOLUME, "mountPath": path, "subPath": discovery.file, "readOnly": True})
        mounts += appended(f"{container_path.path}/volumeMounts", container.volume_mounts, missing)
    if not mounts:
        return PodMutation(warnings=warnings)
    if not discovers:
        discovery = None
    patch = list[AddOperation]()
    script = "" if discovery is None else discovery.script
    for name, value in {ADDRESS: injection.address, CA: injection.ca, DISCOVERY_SCRIPT: script}.items():
        if value and name not in (pod.metadata.annotations or {}):
            pointer = name.replace("~", "~0").replace("/", "~1")
            patch.append(AddOperation(f"/metadata/annotations/{pointer}", value))
    if volume is None:
        patch += appended("/spec/volumes", pod.spec.volumes, [_volume(injection, discovery)])
    return PodMutation([*patch, *mounts], warnings)


def _keeper_patch(pod: NewPod, injection: PodInjection) -> list[AddOperation]:
    """Returns the variables with the address of the keeper on the pod's node, for containers with a token for it."""
    volume = pod.volume(VOLUME)
    if injection.keeper_port is None or (volume is not None and not volume.has_token_for(injection.audience)):
        return []
    host = {"name": _HOST_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    keeper = {"name": _KEEPER, "value": f"$({_HOST_IP}):{injection.keeper_port}"}
    patch: list[AddOperation] = []
    for container_path in pod.containers:
        container = container_path.container
        if container.obstacle() is None and not container.has_variable(_KEEPER):
            missing: list[Mapping[str, object]] = [keeper] if container.has_variable(_HOST_IP) else [host, keeper]
            patch += appended(f"{container_path.path}/env", container.env, missing)
    return patch


def _volume(injection: PodInjection, discovery: HostDiscovery | None) -> Mapping[str, object]:
    items: list[dict[str, object]] = [
        _annotation("address", ADDRESS),
        {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]
    if injection.ca:
        items.append(_annotation("ca.crt", CA))
    if discovery is not None:
        items.append(_annotation(_EXCLUSIONS, EXCLUDED))
        items.append({**_annotation(discovery.file, DISCOVERY_SCRIPT), "mode": _EXECUTABLE})
    token = {"audience": injection.audience, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    return {
        "name": VOLUME,
        "projected": {"sources": [{"serviceAccountToken": token}, {"downwardAPI": {"items": items}}]},
    }


def _annotation(path: str, name: str) -> dict[str, object]:
    return {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}


def avoidance_patch(pod: NewPod, avoid: AvoidedNodes) -> list[AddOperation]:
    """Returns the patch that keeps a pod off noticed nodes, and has it prefer others to hinted ones.

    Pods that are meant for certain nodes are not changed: those of a DaemonSet, or with a node's name.
    """
    owners = pod.metadata.owner_references or ()
    if pod.spec.node_name or _HOSTNAME in (pod.spec.node_selector or {}) or any(o.kind == "DaemonSet" for o in owners):
        return []
    affinity = pod.spec.affinity
    own = None if affinity is None else affinity.node_affinity
    one_term = {"nodeSelectorTerms": [{"matchFields": [_not_on(node) for node in avoid.noticed[:MAX_NODES]]}]}
    if own is not None:
        patch: list[AddOperation] = []
        if avoid.noticed and own.required is None:
            patch.append(AddOperation(f"{_NODES}/{_REQUIRED}", one_term))
        elif avoid.noticed and own.required is not None:
            patch += _in_each(own.required.node_selector_terms, avoid.noticed)
        named = [node for each in own.preferred or () for node in _excluded(each.preference)]
        return patch + appended(f"{_NODES}/{_PREFERRED}", own.preferred, _preferences(avoid, named))
    added: dict[str, object] = {}
    if avoid.noticed:
        added[_REQUIRED] = one_term
    if preferences := _preferences(avoid, ()):
        added[_PREFERRED] = preferences
    if not added:
        return []
    return [AddOperation(_AFFINITY, {"nodeAffinity": added}) if affinity is None else AddOperation(_NODES, added)]


def _preferences(avoid: AvoidedNodes, named: Collection[str]) -> list[Mapping[str, object]]:
    """Prefers other nodes to the hinted ones for which there is room beside those that the pod names already."""
    room = max(0, MAX_NODES - min(MAX_NODES, len(avoid.noticed)) - len(named))
    hinted = [node for node in avoid.hinted if node not in named][:room]
    if not hinted:
        return []
    return [{"weight": _HINT_WEIGHT, "preference": {"matchFields": [_not_on(node) for node in hinted]}}]


def _in_each(terms: Sequence[Term], nodes: Sequence[str]) -> list[AddOperation]:
    """Excludes the nodes in every term, because a node has to match only one of the terms."""
    patch: list[AddOperation] = []
    for number, term in enumerate(terms):
        named = _excluded(term)
        room = max(0, MAX_NODES // len(terms) - len(named))
        # An empty term matches no node, but would match all others with an exclusion in it.
        requirements = (*(term.match_fields or ()), *(term.match_expressions or ()))
        names_nodes = any(each.operator == "In" and each.key in (_NAME, _HOSTNAME) for each in requirements)
        if requirements and not names_nodes:
            missing = [_not_on(node) for node in nodes if node not in named][:room]
            path = f"{_NODES}/{_REQUIRED}/nodeSelectorTerms/{number}/matchFields"
            patch += appended(path, term.match_fields, missing)
    return patch


def _excluded(term: Term) -> Collection[str]:
    return {value for each in term.match_fields or () if each.operator == "NotIn" for value in each.values or ()}


def _not_on(node: str) -> Mapping[str, object]:
    """Returns one requirement for each node: Kubernetes accepts a single value for a field."""
    return {"key": _NAME, "operator": "NotIn", "values": [node]}


def appended(path: str, there: Sequence[object] | None, values: Sequence[Mapping[str, object]]) -> list[AddOperation]:
    """Returns the operations that append values to a list, which may not exist yet."""
    if not values:
        return []
    return [AddOperation(f"{path}/-", each) for each in values] if there else [AddOperation(path, list(values))]
