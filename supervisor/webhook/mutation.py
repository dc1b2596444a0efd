"""What a pod is given: pure, from the pod as it was sent to the patch that makes it ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.cluster.objects import ADDRESS, CA, DISCOVERY_SCRIPT, opts_in
from supervisor.jobs.trainingjob.discovery import DISCOVERY
from supervisor.jobs.trainingjob.objects import EXCLUDED, is_launcher
from supervisor.webhook.affinity import avoiding
from supervisor.webhook.patch import Add, appended, key
from supervisor.webhook.pods import DIRECTORY, VOLUME, Container, ContainerPath, NewPod

_TOKEN_SECONDS = 3600
"""The kubelet renews it after four fifths of that."""

_EXECUTABLE = 0o555
_EDL = "/etc/edl"
_SCRIPT = "discover_hosts.sh"
_DISCOVERY = f"{_EDL}/{_SCRIPT}"
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


def _identity(pod: NewPod, gifts: PodInjection) -> Mutation:
    there = pod.volume(VOLUME)
    if there is not None and not there.has_token_for(gifts.audience):
        return Mutation(warnings=[f"the pod has a volume {VOLUME} of its own, and is not given ours"])
    hindrances = {place.path: _hindrance(place.container) for place in pod.containers}
    warnings = [said for said in hindrances.values() if said is not None]
    places = [place for place in pod.containers if hindrances[place.path] is None]
    scripts = {place.path for place in places if is_launcher(pod.labels) and _discovers(place.container)}
    if there is not None and not there.shown >= {_SCRIPT, _EXCLUSIONS}:
        scripts = set()  # Made by hand: a file that is not there cannot be mounted.
    mounts = [mount for place in places for mount in _mounts(place, with_script=place.path in scripts)]
    if not mounts:
        return Mutation(warnings=warnings)
    patch = list(_annotations(pod, gifts, with_script=bool(scripts)))
    if there is None:
        patch += appended("/spec/volumes", pod.spec.volumes, [_volume(gifts, with_script=bool(scripts))])
    return Mutation([*patch, *mounts], warnings)


def _hindrance(container: Container) -> str | None:
    """Why a container is left as it is; None where it is not, or has what it needs."""
    if container.shows(VOLUME, DIRECTORY):
        return None
    if container.mounts_below(DIRECTORY):
        return f"container {container.name} keeps its own {DIRECTORY}"
    if container.sealed_above(DIRECTORY):
        return f"container {container.name} has a read-only volume above {DIRECTORY}, and is not given it"
    return None


def _discovers(container: Container) -> bool:
    """Whether it is where a launcher asks for its hosts, by the operator's script or by ours."""
    has_own = container.mounts_at(_DISCOVERY) and not container.shows(VOLUME, _DISCOVERY)
    return container.mounts_at(_EDL) and not has_own and not container.looks_elsewhere


def _mounts(place: ContainerPath, *, with_script: bool) -> list[Add]:
    container, missing = place.container, list[Mapping[str, object]]()
    if not container.mounts_at(DIRECTORY):
        missing.append({"name": VOLUME, "mountPath": DIRECTORY, "readOnly": True})
    if with_script and not container.mounts_at(_DISCOVERY):
        missing.append({"name": VOLUME, "mountPath": _DISCOVERY, "subPath": _SCRIPT, "readOnly": True})
    return appended(f"{place.path}/volumeMounts", container.volume_mounts, missing)


def _annotations(pod: NewPod, gifts: PodInjection, *, with_script: bool) -> Iterable[Add]:
    given = {ADDRESS: gifts.address, CA: gifts.ca, DISCOVERY_SCRIPT: DISCOVERY if with_script else ""}
    for name, value in given.items():
        if value and name not in pod.annotations:
            yield Add(f"/metadata/annotations/{key(name)}", value)


def _volume(gifts: PodInjection, *, with_script: bool) -> Mapping[str, object]:
    items = [_field("address", _annotation(ADDRESS)), _field("annotations", "metadata.annotations")]
    if gifts.ca:
        items.append(_field("ca.crt", _annotation(CA)))
    if with_script:
        items.append(_field(_EXCLUSIONS, _annotation(EXCLUDED)))
        items.append({**_field(_SCRIPT, _annotation(DISCOVERY_SCRIPT)), "mode": _EXECUTABLE})
    token = {"audience": gifts.audience, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    return {
        "name": VOLUME,
        "projected": {"sources": [{"serviceAccountToken": token}, {"downwardAPI": {"items": items}}]},
    }


def _annotation(name: str) -> str:
    return f"metadata.annotations['{name}']"


def _field(path: str, field: str) -> dict[str, object]:
    return {"path": path, "fieldRef": {"fieldPath": field}}
