"""The needed part of a new pod, and checks of what may be added to it."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from servicekit.kubernetes.objects import Owner
from supervisor.cluster.podspec import Body

DIRECTORY = "/var/run/kubeai"
VOLUME = "job-supervisor"

_ENVIRONMENT = "KUBEAI_DIR"
"""The variable that names another directory than ours to the processes of a container."""

_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of mirror pods, by which a kubelet shows its static pods; they may have no tokens."""


class Mount(Body, frozen=True):
    """A volume mount of a container."""

    name: str
    mount_path: str
    read_only: bool = False


class _Variable(Body, frozen=True):
    name: str


class Container(Body, frozen=True):
    name: str
    volume_mounts: tuple[Mount, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    restart_policy: str | None = None

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """All volume mounts."""
        return self.volume_mounts or ()

    def mounts_at(self, path: str) -> bool:
        """Whether anything is mounted at exactly that path."""
        return any(_normal(each.mount_path) == _normal(path) for each in self.mounts)

    def shows(self, volume: str, path: str) -> bool:
        """Whether that volume is mounted at that path."""
        return any(each.name == volume and _normal(each.mount_path) == _normal(path) for each in self.mounts)

    def mounts_below(self, path: str) -> bool:
        """Whether anything is mounted at that path or below it."""
        return any(_within(each.mount_path, path) for each in self.mounts)

    def sealed_above(self, path: str) -> bool:
        """Whether the path is below a read-only mount, where a runtime cannot create a mount point."""
        return any(each.read_only and _within(path, each.mount_path) for each in self.mounts)

    @property
    def uses_other_directory(self) -> bool:
        """Whether its processes are configured for another directory."""
        return any(each.name == _ENVIRONMENT for each in self.env or ())


class _Item(Body, frozen=True):
    path: str = ""


class _Downward(Body, frozen=True):
    items: tuple[_Item, ...] | None = None


class _Token(Body, frozen=True):
    path: str
    audience: str = ""


class _Source(Body, frozen=True):
    service_account_token: _Token | None = None
    downward_api: _Downward | None = msgspec.field(default=None, name="downwardAPI")


class _Projected(Body, frozen=True):
    sources: tuple[_Source, ...] | None = None


class Volume(Body, frozen=True):
    name: str
    projected: _Projected | None = None

    def has_token_for(self, audience: str) -> bool:
        """Whether the volume contains a token for our audience: it was added here, or by hand in the same way."""
        tokens = (each.service_account_token for each in self._sources)
        return any(each is not None and (each.path, each.audience) == ("token", audience) for each in tokens)

    @property
    def shown(self) -> frozenset[str]:
        """The files of the volume that expose fields of the pod."""
        volumes = (each.downward_api for each in self._sources)
        return frozenset(item.path for volume in volumes if volume is not None for item in volume.items or ())

    @property
    def _sources(self) -> tuple[_Source, ...]:
        return (self.projected.sources or ()) if self.projected is not None else ()


class Requirement(Body, frozen=True):
    """One requirement on a node."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class Term(Body, frozen=True):
    """Requirements that must all match; an empty term matches no node."""

    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


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


class _Metadata(Body, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Spec(Body, frozen=True):
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
    """The new pod."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()

    @property
    def annotations(self) -> Mapping[str, str]:
        """All of them."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> Mapping[str, str]:
        """All of them."""
        return self.metadata.labels or {}

    @property
    def owners(self) -> tuple[Owner, ...]:
        return self.metadata.owner_references or ()

    @property
    def is_mirror(self) -> bool:
        """Whether it is a mirror pod of a kubelet's static pod."""
        return _MIRROR in self.annotations

    @property
    def containers(self) -> Iterator[ContainerPath]:
        """The containers that run as long as the pod: not init containers that end before the others start."""
        for number, container in enumerate(self.spec.containers):
            yield ContainerPath(f"/spec/containers/{number}", container)
        for number, container in enumerate(self.spec.init_containers or ()):
            if container.restart_policy == "Always":
                yield ContainerPath(f"/spec/initContainers/{number}", container)

    def volume(self, name: str) -> Volume | None:
        return next((each for each in self.spec.volumes or () if each.name == name), None)


def _within(path: str, other: str) -> bool:
    """Whether `path` is `other` or below it."""
    above = _normal(other)
    return _normal(path) == above or _normal(path).startswith(above.rstrip("/") + "/")


def _normal(path: str) -> str:
    """Normalizes a path; /var/run is a link to /run in all common images."""
    return posixpath.normpath("/" + path.lstrip("/") + "/").replace("/var/run", "/run", 1)
