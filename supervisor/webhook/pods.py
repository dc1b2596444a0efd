"""Decodes the part of a new pod that the webhook needs, and checks what the webhook may add."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from servicekit.kubernetes.objects import Owner
from supervisor.cluster.podspec import Body

DIRECTORY = "/var/run/kubeai"
VOLUME = "job-supervisor"

_ENVIRONMENT = "KUBEAI_DIR"
"""The variable that names another directory than ours to the processes of a container."""

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of mirror pods, by which a kubelet shows its static pods; they may have no tokens."""


class PodVolumeMount(Body, frozen=True):
    """A volume mount of a container."""

    name: str
    mount_path: str
    read_only: bool = False


class _Variable(Body, frozen=True):
    name: str


class Container(Body, frozen=True):
    name: str
    volume_mounts: tuple[PodVolumeMount, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    restart_policy: str | None = None

    def mounted_at(self, path: str) -> frozenset[str]:
        """Returns the names of the volumes that are mounted at exactly that path."""
        return frozenset(each.name for each in self.volume_mounts or () if _normal(each.mount_path) == _normal(path))

    def has_variable(self, name: str) -> bool:
        """Returns whether the container sets a variable of that name itself."""
        return any(each.name == name for each in self.env or ())

    def obstacle(self) -> str | None:
        """Returns why our directory cannot be mounted; None if it can be, or already is."""
        mounts = self.volume_mounts or ()
        if VOLUME in self.mounted_at(DIRECTORY):
            return None
        if any(_is_within(each.mount_path, DIRECTORY) for each in mounts):
            return f"container {self.name} keeps its own {DIRECTORY}"
        # Below a read-only mount, a runtime cannot create a mount point.
        if any(each.read_only and _is_within(DIRECTORY, each.mount_path) for each in mounts):
            return f"container {self.name} has a read-only volume above {DIRECTORY}, so it is not mounted"
        return None

    def discovers(self, directory: str, file: str) -> bool:
        """Returns whether a launcher in this container discovers its hosts by that script, the controller's or ours."""
        own_scripts = self.mounted_at(f"{directory}/{file}")
        has_own = own_scripts and VOLUME not in own_scripts
        # Its processes may be configured for another directory than ours.
        is_elsewhere = self.has_variable(_ENVIRONMENT)
        return bool(self.mounted_at(directory)) and not has_own and not is_elsewhere


class _DownwardItem(Body, frozen=True):
    path: str = ""


class _Downward(Body, frozen=True):
    items: tuple[_DownwardItem, ...] | None = None


class _ProjectedToken(Body, frozen=True):
    path: str
    audience: str = ""


class _VolumeSource(Body, frozen=True):
    service_account_token: _ProjectedToken | None = None
    downward_api: _Downward | None = msgspec.field(default=None, name="downwardAPI")


class _ProjectedVolume(Body, frozen=True):
    sources: tuple[_VolumeSource, ...] | None = None


class Volume(Body, frozen=True):
    name: str
    projected: _ProjectedVolume | None = None

    def has_token_for(self, audience: str) -> bool:
        """Returns whether the volume contains a token for our audience: added here, or by hand in the same way."""
        tokens = (each.service_account_token for each in self._sources)
        return any(each is not None and (each.path, each.audience) == ("token", audience) for each in tokens)

    @property
    def shown(self) -> frozenset[str]:
        """The files of the volume that expose fields of the pod, by path."""
        volumes = (each.downward_api for each in self._sources)
        return frozenset(item.path for volume in volumes if volume is not None for item in volume.items or ())

    @property
    def _sources(self) -> tuple[_VolumeSource, ...]:
        return (self.projected.sources or ()) if self.projected is not None else ()


class NodeRequirement(Body, frozen=True):
    """One requirement on a node."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class Term(Body, frozen=True):
    """Requirements that must all match; an empty term matches no node."""

    match_expressions: tuple[NodeRequirement, ...] | None = None
    match_fields: tuple[NodeRequirement, ...] | None = None


class Terms(Body, frozen=True):
    """Terms, one of which must match."""

    node_selector_terms: tuple[Term, ...] = ()


class Preference(Body, frozen=True):
    """A term that a node should match."""

    preference: Term


class NodeAffinity(Body, frozen=True):
    """The node affinity of a pod."""

    required: Terms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[Preference, ...] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Body, frozen=True):
    """The affinity of a pod."""

    node_affinity: NodeAffinity | None = None


class _NewPodMetadata(Body, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None


class _NewPodSpec(Body, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None


@dataclass(frozen=True, slots=True)
class ContainerPath:
    """A container and its JSON pointer in the pod."""

    path: str
    container: Container


class NewPod(Body, frozen=True):
    """The pod that is being created."""

    metadata: _NewPodMetadata = _NewPodMetadata()
    spec: _NewPodSpec = _NewPodSpec()

    def volume(self, name: str) -> Volume | None:
        """Returns the pod's volume of that name."""
        return next((each for each in self.spec.volumes or () if each.name == name), None)

    @property
    def containers(self) -> Iterator[ContainerPath]:
        """The containers that run as long as the pod: not init containers that end before the others start."""
        for number, container in enumerate(self.spec.containers):
            yield ContainerPath(f"/spec/containers/{number}", container)
        for number, container in enumerate(self.spec.init_containers or ()):
            if container.restart_policy == "Always":
                yield ContainerPath(f"/spec/initContainers/{number}", container)


def _is_within(path: str, other: str) -> bool:
    """Returns whether `path` is `other` or below it."""
    above = _normal(other)
    return _normal(path) == above or _normal(path).startswith(above.rstrip("/") + "/")


def _normal(path: str) -> str:
    """Normalizes a path; /var/run is a link to /run in all common images."""
    return posixpath.normpath("/" + path.lstrip("/") + "/").replace("/var/run", "/run", 1)
