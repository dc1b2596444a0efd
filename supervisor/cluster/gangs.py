"""Reads gangs, whose pods a scheduler starts together or not at all, and caches their PodGroups.

Gang schedulers know the pods of a gang by a label, an annotation or a field that names their PodGroup, or by a number
on the pods themselves.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import msgspec

from servicekit.bounds import MAX_COUNT, counted, whole
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.follower import Follower
from servicekit.kubernetes.objects import Metadata, Object, ObjectKey, OwnedMetadata
from servicekit.kubernetes.server import ApiServer

_VOLCANO = "scheduling.volcano.sh"
_LIGHTWEIGHT = "pod-group.scheduling.sigs.k8s.io"
_KOORDINATOR = "gang.scheduling.koordinator.sh"

_NAMES = (
    "scheduling.k8s.io/group-name",
    f"{_VOLCANO}/group-name",
    "scheduling.x-k8s.io/pod-group",
    _LIGHTWEIGHT,
    f"{_LIGHTWEIGHT}/name",
    f"{_KOORDINATOR}/name",
)
"""The labels and annotations of a pod that name its gang, as Volcano, scheduler-plugins, ACK and Koordinator write."""

_LEAST = (f"{_KOORDINATOR}/min-available", f"{_LIGHTWEIGHT}/min-available")
"""The labels and annotations of a pod with the fewest pods of its gang, for gangs without a PodGroup."""

_SHARED = 4096
"""Gangs that are shared by their pods: those of thousands of jobs."""


@dataclass(frozen=True, slots=True)
class GangDemand:
    """The fewest pods of a gang that are started together, and what says so, as the subject of a sentence."""

    pods: int
    source: str


@dataclass(frozen=True, slots=True)
class GangMember:
    """What a pod or a pod template says of its gang: its name, and the fewest pods; None if only a PodGroup says it."""

    group: str
    demand: GangDemand | None = None


def gang_of(
    labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None, scheduling_group: str = ""
) -> GangMember | None:
    """Reads the gang of a pod or a pod template.

    Args:
        labels: Its labels.
        annotations: Its annotations.
        scheduling_group: The name of the PodGroup in its spec, as Kubernetes 1.36 and later have it.

    Returns:
        None if nothing names a gang.
    """
    marks = (annotations or {}, labels or {})
    names = (found[name] for name in _NAMES for found in marks if found.get(name))
    group = scheduling_group or next(names, "")
    written = ((name, whole(found[name], MAX_COUNT)) for name in _LEAST for found in marks if name in found)
    least = next(((name, pods) for name, pods in written if pods), ("", 0))
    return None if not group and not least[1] else _shared(group, *least)


@lru_cache(_SHARED)
def _shared(group: str, name: str, pods: int) -> GangMember:
    return GangMember(group, GangDemand(pods, f"{name} of its pods") if pods else None)


@dataclass(frozen=True, slots=True)
class PodGroupForm:
    """How an API writes PodGroups.

    Attributes:
        resource: The API resource.
        path: The fields of the spec that lead to the fewest pods.
        fixed: Nobody can change that number, so that no controller keeps it at the job's size.
    """

    resource: Resource
    path: tuple[str, ...]
    fixed: bool = False


def _form(group: str, version: str, *path: str, fixed: bool = False) -> PodGroupForm:
    resource = Resource(group=group, version=version, kind="PodGroup", plural="podgroups", namespaced=True)
    return PodGroupForm(resource, path, fixed)


FORMS: tuple[PodGroupForm, ...] = (
    _form(_VOLCANO, "v1beta1", "minMember"),
    _form("scheduling.x-k8s.io", "v1alpha1", "minMember"),
    _form("scheduling.sigs.k8s.io", "v1alpha1", "minMember"),
    # Kubernetes 1.36, and 1.37, where the number may be changed.
    _form("scheduling.k8s.io", "v1alpha2", "schedulingPolicy", "gang", "minCount", fixed=True),
    _form("scheduling.k8s.io", "v1beta1", "schedulingPolicy", "gang", "minCount"),
)
"""The APIs with PodGroups, none of which has to be there."""


class _PodGroupBody(msgspec.Struct, frozen=True):
    metadata: OwnedMetadata
    spec: dict[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One PodGroup. `owners` are the uids of the objects that own it, `least` the fewest pods, 0 where it names none.

    `fixed` is that of its form.
    """

    metadata: Metadata
    group: str
    owners: frozenset[str]
    least: int
    fixed: bool = False

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self.metadata.name

    @property
    def demand(self) -> GangDemand:
        """What it demands."""
        return GangDemand(self.least, f"PodGroup {self.name} ({self.group})")

    @property
    def content(self) -> tuple[frozenset[str], int]:
        """The part that decisions depend on; its status changes far more often."""
        return self.owners, self.least


def read_pod_group(data: bytes | msgspec.Raw, form: PodGroupForm) -> PodGroup:
    """Decodes a PodGroup.

    Raises:
        msgspec.MsgspecError: It is none of this form.
    """
    read = msgspec.json.decode(data, type=_PodGroupBody)
    *parents, last = form.path
    spec = read.spec
    for name in parents:
        spec = msgspec.json.decode(spec.get(name, b"{}"), type=dict[str, msgspec.Raw])
    least = msgspec.json.decode(spec.get(last, b"null"), type=int | None)
    owners = frozenset(each.uid for each in read.metadata.owner_references)
    return PodGroup(read.metadata, form.resource.group, owners, counted(least), form.fixed)


class PodGroups:
    """Caches the PodGroups of a cluster. The caller runs the `followers`, each of an API that may be missing.

    Args:
        server: The API server.
        clock: For the followers.
        on_change: Called with a PodGroup that has appeared, gone, or changed what it demands.
        bulkhead: Keeps what nobody foresaw with its PodGroup.
        namespaces: The namespaces whose PodGroups are cached; empty for all.

    Attributes:
        followers: Those of the APIs by the name of each resource.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Clock,
        on_change: Callable[[PodGroup], None],
        bulkhead: Bulkhead,
        *,
        namespaces: Collection[str] = (),
    ) -> None:
        self._on_change = on_change
        self._by_name: dict[ObjectKey, dict[str, PodGroup]] = {}
        self._by_owner: dict[tuple[str, str], dict[str, PodGroup]] = {}
        self.followers = {
            form.resource.api_version: Follower(
                ResourceClient(server, form.resource, partial(read_pod_group, form=form)),
                self._moved,
                clock,
                bulkhead,
                namespaces=namespaces,
            )
            for form in FORMS
        }

    @property
    def unread(self) -> int:
        """The number of PodGroups that cannot be decoded."""
        return sum(len(follower.unread) for follower in self.followers.values())

    def of(self, job: Object, names: Iterable[str]) -> Collection[PodGroup]:
        """Returns the PodGroups that a job owns, and those in its namespace with one of these names."""
        namespace, uid = job.metadata.namespace, job.metadata.uid
        found = dict(self._by_owner.get((namespace, uid), {}))
        for name in names:
            found |= self._by_name.get(ObjectKey(namespace, name), {})
        return found.values()

    def _moved(self, before: PodGroup | None, after: PodGroup | None) -> None:
        if before is not None:
            for group, index, key in self._places(before):
                index[key].pop(group, None)
                if not index[key]:
                    del index[key]
        if after is not None:
            for group, index, key in self._places(after):
                index.setdefault(key, {})[group] = after
        if before is not None and (after is None or before.content != after.content):
            self._on_change(before)
        if after is not None and (before is None or before.content != after.content):
            self._on_change(after)

    def _places(self, group: PodGroup) -> Iterator[tuple[str, dict[Any, dict[str, PodGroup]], Any]]:
        """Yields the indexes that hold a PodGroup, each with the key there. One object may be in several APIs."""
        identity = f"{group.metadata.uid}/{group.fixed}"
        yield identity, self._by_name, group.metadata.key
        for uid in group.owners:
            yield identity, self._by_owner, (group.metadata.namespace, uid)
