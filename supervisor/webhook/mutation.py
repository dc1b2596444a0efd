"""What a pod is given: pure, from the pod as it was sent to the patch that makes it ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.cluster.annotations import ADDRESS, CA, DISCOVERY_SCRIPT, EXCLUDED, opts_in
from supervisor.jobs.kind import Discovery, Role
from supervisor.jobs.registry import KINDS
from supervisor.webhook.affinity import avoiding
from supervisor.webhook.patch import Add, appended, key
from supervisor.webhook.pods import DIRECTORY, VOLUME, Container, ContainerPath, NewPod

_TOKEN_SECONDS = 3600
"""The kubelet renews it after four fifths of that."""

_EXECUTABLE = 0o555
_EXCLUSIONS = "excluded-hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInjection:
    """What there is for pods at present.

    Attributes:
        address: Where the supervisor is, as a URL.
        ca: PEM of those who vouch for its certificate; empty where the system's do.
        audience: Of the tokens.
        avoid: The nodes that new pods are to keep off, the most important first.
    """

    address: str
    ca: str
    audience: str
    avoid: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Mutation:
    """What is changed, and what whoever makes the pod should know of what is not."""

    patch: Sequence[Add] = ()
    warnings: Sequence[str] = ()


def mutated(pod: NewPod, gifts: PodInjection) -> Mutation:
    """What makes an opted-in pod ours; nothing that it has is changed, and nothing is given twice."""
    if not opts_in(pod.annotations) or pod.is_mirror:
        return Mutation()
    identity = _identity(pod, gifts)
    return Mutation((*identity.patch, *avoiding(pod, gifts.avoid)), identity.warnings)


def _identity(pod: NewPod, injection: PodInjection) -> Mutation:
    volume = pod.volume(VOLUME)
    if volume is not None and not volume.has_token_for(injection.audience):
        return Mutation(warnings=[f"the pod has a volume {VOLUME} of its own, and is not given ours"])
    obstacles = {place.path: _obstacle(place.container) for place in pod.containers}
    warnings = [obstacle for obstacle in obstacles.values() if obstacle is not None]
    places = [place for place in pod.containers if obstacles[place.path] is None]
    discovery = _discovery(pod)
    if discovery is not None and volume is not None and not volume.shown >= {discovery.file, _EXCLUSIONS}:
        discovery = None  # Made by hand: a file that is not there cannot be mounted.
    discovering = {place.path for place in places if discovery and _discovers(place.container, discovery)}
    if not discovering:
        discovery = None
    mounts = [mount for place in places for mount in _mounts(place, discovery if place.path in discovering else None)]
    if not mounts:
        return Mutation(warnings=warnings)
    patch = list(_annotations(pod, injection, discovery))
    if volume is None:
        patch += appended("/spec/volumes", pod.spec.volumes, [_volume(injection, discovery)])
    return Mutation([*patch, *mounts], warnings)


def _discovery(pod: NewPod) -> Discovery | None:
    """How the pod learns its hosts, if it is a launcher of a kind that asks for them."""
    launched = (kind.discovery for kind in KINDS if kind.role(pod.labels) is Role.LAUNCHER)
    return next((discovery for discovery in launched if discovery is not None), None)


def _obstacle(container: Container) -> str | None:
    """Why a container is left as it is; None where it is not, or has what it needs."""
    if container.shows(VOLUME, DIRECTORY):
        return None
    if container.mounts_below(DIRECTORY):
        return f"container {container.name} keeps its own {DIRECTORY}"
    if container.sealed_above(DIRECTORY):
        return f"container {container.name} has a read-only volume above {DIRECTORY}, and is not given it"
    return None


def _script_path(discovery: Discovery) -> str:
    return f"{discovery.directory}/{discovery.file}"


def _discovers(container: Container, discovery: Discovery) -> bool:
    """Whether it is where a launcher asks for its hosts, by the controller's script or by ours."""
    path = _script_path(discovery)
    has_own = container.mounts_at(path) and not container.shows(VOLUME, path)
    return container.mounts_at(discovery.directory) and not has_own and not container.looks_elsewhere


def _mounts(place: ContainerPath, discovery: Discovery | None) -> list[Add]:
    container, missing = place.container, list[Mapping[str, object]]()
    if not container.mounts_at(DIRECTORY):
        missing.append({"name": VOLUME, "mountPath": DIRECTORY, "readOnly": True})
    if discovery is not None and not container.mounts_at(path := _script_path(discovery)):
        missing.append({"name": VOLUME, "mountPath": path, "subPath": discovery.file, "readOnly": True})
    return appended(f"{place.path}/volumeMounts", container.volume_mounts, missing)


def _annotations(pod: NewPod, injection: PodInjection, discovery: Discovery | None) -> Iterable[Add]:
    script = "" if discovery is None else discovery.script
    for name, value in {ADDRESS: injection.address, CA: injection.ca, DISCOVERY_SCRIPT: script}.items():
        if value and name not in pod.annotations:
            yield Add(f"/metadata/annotations/{key(name)}", value)


def _volume(injection: PodInjection, discovery: Discovery | None) -> Mapping[str, object]:
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
