"""Computes the patch for a new pod. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.cluster.annotations import ADDRESS, CA, DISCOVERY_SCRIPT, EXCLUDED, opts_in
from supervisor.jobs.kind import HostDiscovery, PodRole
from supervisor.jobs.registry import KINDS
from supervisor.webhook.affinity import AvoidedNodes, avoidance_patch
from supervisor.webhook.patch import Add, appended, key
from supervisor.webhook.pods import DIRECTORY, VOLUME, Container, ContainerPath, NewPod

_TOKEN_SECONDS = 3600
"""The kubelet renews it after four fifths of that."""

_EXECUTABLE = 0o555
_EXCLUSIONS = "excluded-hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInjection:
    """What a new pod is given.

    Attributes:
        address: The URL of the supervisor.
        ca: The CAs of its certificate as PEM; empty if the system's CAs are enough.
        audience: The audience of the tokens.
        avoid: The nodes that new pods avoid.
    """

    address: str
    ca: str
    audience: str
    avoid: AvoidedNodes = field(default_factory=AvoidedNodes)


@dataclass(frozen=True, slots=True)
class Mutation:
    """The patch, and the warnings for the creator of the pod about what was not changed."""

    patch: Sequence[Add] = ()
    warnings: Sequence[str] = ()


def mutation_for(pod: NewPod, injection: PodInjection) -> Mutation:
    """The mutation of an opted-in pod; it changes nothing that the pod has, and adds nothing twice."""
    if not opts_in(pod.annotations) or pod.is_mirror:
        return Mutation()
    identity = _identity(pod, injection)
    return Mutation((*identity.patch, *avoidance_patch(pod, injection.avoid)), identity.warnings)


def _identity(pod: NewPod, injection: PodInjection) -> Mutation:
    volume = pod.volume(VOLUME)
    if volume is not None and not volume.has_token_for(injection.audience):
        return Mutation(warnings=[f"the pod has its own volume {VOLUME}, so ours is not added"])
    obstacles = {container_path.path: _obstacle(container_path.container) for container_path in pod.containers}
    warnings = [obstacle for obstacle in obstacles.values() if obstacle is not None]
    container_paths = [container_path for container_path in pod.containers if obstacles[container_path.path] is None]
    discovery = _discovery(pod)
    if discovery is not None and volume is not None and not volume.shown >= {discovery.file, _EXCLUSIONS}:
        discovery = None  # The volume was written by hand: a file that it lacks cannot be mounted.
    discovering = {
        container_path.path
        for container_path in container_paths
        if discovery and _discovers(container_path.container, discovery)
    }
    if not discovering:
        discovery = None
    mounts = [
        mount
        for container_path in container_paths
        for mount in _mounts(container_path, discovery if container_path.path in discovering else None)
    ]
    if not mounts:
        return Mutation(warnings=warnings)
    patch = list(_annotations(pod, injection, discovery))
    if volume is None:
        patch += appended("/spec/volumes", pod.spec.volumes, [_volume(injection, discovery)])
    return Mutation([*patch, *mounts], warnings)


def _discovery(pod: NewPod) -> HostDiscovery | None:
    """The host discovery of the pod, if it is a launcher of a kind that has one."""
    launched = (kind.discovery for kind in KINDS if kind.role(pod.labels) is PodRole.LAUNCHER)
    return next((discovery for discovery in launched if discovery is not None), None)


def _obstacle(container: Container) -> str | None:
    """Why a container is not changed; None if it is changed or needs nothing."""
    if container.shows(VOLUME, DIRECTORY):
        return None
    if container.mounts_below(DIRECTORY):
        return f"container {container.name} keeps its own {DIRECTORY}"
    if container.sealed_above(DIRECTORY):
        return f"container {container.name} has a read-only volume above {DIRECTORY}, so it is not mounted"
    return None


def _script_path(discovery: HostDiscovery) -> str:
    return f"{discovery.directory}/{discovery.file}"


def _discovers(container: Container, discovery: HostDiscovery) -> bool:
    """Whether the launcher in this container discovers its hosts, by the controller's script or by ours."""
    path = _script_path(discovery)
    has_own = container.mounts_at(path) and not container.shows(VOLUME, path)
    return container.mounts_at(discovery.directory) and not has_own and not container.uses_other_directory


def _mounts(container_path: ContainerPath, discovery: HostDiscovery | None) -> list[Add]:
    container, missing = container_path.container, list[Mapping[str, object]]()
    if not container.mounts_at(DIRECTORY):
        missing.append({"name": VOLUME, "mountPath": DIRECTORY, "readOnly": True})
    if discovery is not None and not container.mounts_at(path := _script_path(discovery)):
        missing.append({"name": VOLUME, "mountPath": path, "subPath": discovery.file, "readOnly": True})
    return appended(f"{container_path.path}/volumeMounts", container.volume_mounts, missing)


def _annotations(pod: NewPod, injection: PodInjection, discovery: HostDiscovery | None) -> Iterable[Add]:
    script = "" if discovery is None else discovery.script
    for name, value in {ADDRESS: injection.address, CA: injection.ca, DISCOVERY_SCRIPT: script}.items():
        if value and name not in pod.annotations:
            yield Add(f"/metadata/annotations/{key(name)}", value)


def _volume(injection: PodInjection, discovery: HostDiscovery | None) -> Mapping[str, object]:
    items = [_field("address", _annotation(ADDRESS)), _field("annotations", "metadata.annotations")]
    if injection.ca:
        items.append(_field("ca.crt", _annotation(CA)))
    if discovery is not None:
        items.append(_field(_EXCLUSIONS, _annotation(EXCLUDED)))
        items.append({**_field(discovery.file, _annotation(DISCOVERY_SCRIPT)), "mode": _EXECUTABLE})
    token = {"audience": injection.audience, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    return {
        "name": VOLUME,
        "projected": {"sources": [{"serviceAccountToken": token}, {"downwardAPI": {"items": items}}]},
    }


def _annotation(name: str) -> str:
    return f"metadata.annotations['{name}']"


def _field(path: str, field: str) -> dict[str, object]:
    return {"path": path, "fieldRef": {"fieldPath": field}}
