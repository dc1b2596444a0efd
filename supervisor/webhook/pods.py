"""A pod that is about to be made, as far as it is looked at here, and what may be said against changing it."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from supervisor.cluster.objects import Owner
from supervisor.cluster.podspec import Body

DIRECTORY = "/var/run/kubeai"
VOLUME = "job-supervisor"

_ENVIRONMENT = "KUBEAI_DIR"
"""Names another directory than ours to whoever reads it."""

_MIRROR = "kubernetes.io/config.mirror"
"""Of what a kubelet shows of its own static pods, which may have no tokens."""


class Mount(Body, frozen=True):
    """A volume in a container."""

    name: str
    mount_path: str
    read_only: bool = False


class _Variable(Body, frozen=True):
    name: str


class Container(Body, frozen=True):
    """A container."""

    name: str
    volume_mounts: tuple[Mount, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    restart_policy: str | None = None

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """All of them."""
        return self.volume_mounts or ()

    def mounts_at(self, path: str) -> bool:
        """Whether anything is mounted just there."""
        return any(_normal(each.mount_path) == _normal(path) for each in self.mounts)

    def shows(self, volume: str, path: str) -> bool:
        """Whether it is that volume."""
        return any(each.name == volume and _normal(each.mount_path) == _normal(path) for each in self.mounts)

    def mounts_below(self, path: str) -> bool:
        """Whether anything is mounted there or below."""
        return any(_within(each.mount_path, path) for each in self.mounts)

    def sealed_above(self, path: str) -> bool:
        """Whether it is below a mount that is read-only: a runtime cannot make a place for it there."""
        return any(each.read_only and _within(path, each.mount_path) for each in self.mounts)

    @property
    def looks_elsewhere(self) -> bool:
        """Whether its processes are told of another directory."""
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
    """A volume."""

    name: str
    projected: _Projected | None = None

    def has_token_for(self, audience: str) -> bool:
        """Whether it shows a token of ours: it was made here, or by hand in the same way."""
        tokens = (each.service_account_token for each in self._sources)
        return any(each is not None and (each.path, each.audience) == ("token", audience) for each in tokens)

    @property
    def shown(self) -> frozenset[str]:
        """The files that fields of the pod are shown as."""
        volumes = (each.downward_api for each in self._sources)
        return frozenset(item.path for volume in volumes if volume is not None for item in volume.items or ())

    @property
    def _sources(self) -> tuple[_Source, ...]:
        return (self.projected.sources or ()) if self.projected is not None else ()


class Requirement(Body, frozen=True):
    """What a node has to fulfil."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class Term(Body, frozen=True):
    """All of these; an empty one no node fulfils."""

    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class Terms(Body, frozen=True):
    """One of these."""

    node_selector_terms: tuple[Term, ...] = ()


class NodeAffinity(Body, frozen=True):
    """Nodes that a pod may be on."""

    required: Terms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Body, frozen=True):
    """Where a pod may be."""

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
    """A container and where it stands in the pod, as a JSON pointer."""

    path: str
    container: Container


class NewPod(Body, frozen=True):
    """The pod."""

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
        """All of them, the controller among them."""
        return self.metadata.owner_references or ()

    @property
    def is_mirror(self) -> bool:
        """Whether it only shows what a kubelet runs anyway."""
        return _MIRROR in self.annotations

    @property
    def containers(self) -> Iterator[ContainerPath]:
        """Those that run for as long as the pod does: not what has to end before the others begin."""
        for number, container in enumerate(self.spec.containers):
            yield ContainerPath(f"/spec/containers/{number}", container)
        for number, container in enumerate(self.spec.init_containers or ()):
            if container.restart_policy == "Always":
                yield ContainerPath(f"/spec/initContainers/{number}", container)

    def volume(self, name: str) -> Volume | None:
        """The volume of that name."""
        return next((each for each in self.spec.volumes or () if each.name == name), None)


def _within(path: str, other: str) -> bool:
    """Whether a path is another one, or below it."""
    above = _normal(other)
    return _normal(path) == above or _normal(path).startswith(above.rstrip("/") + "/")


def _normal(path: str) -> str:
    """/var/run is a link to /run in all images that matter."""
    return posixpath.normpath("/" + path.lstrip("/") + "/").replace("/var/run", "/run", 1)
