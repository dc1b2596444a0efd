"""Decodes the spec of a pod or template, and derives its demand on a node."""

from collections.abc import Iterable, Mapping

import msgspec

from supervisor.cluster.annotations import PREFIX
from supervisor.cluster.quantity import thousandths
from supervisor.domain.capacity import Demand, Effect, LabelOperator, Requirement, Resources, Toleration

_HOSTNAME = "kubernetes.io/hostname"


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """Part of an object, as Kubernetes names its fields."""


class _Amounts(Body, frozen=True):
    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class _Container(Body, frozen=True):
    resources: _Amounts = _Amounts()
    restart_policy: str = ""


class _Toleration(Body, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class _Expression(Body, frozen=True):
    key: str
    operator: LabelOperator
    values: tuple[str, ...] | None = ()


class _NodeTerm(Body, frozen=True):
    match_expressions: tuple[_Expression, ...] | None = ()
    match_fields: tuple[_Expression, ...] | None = ()


class _NodeTerms(Body, frozen=True):
    node_selector_terms: tuple[_NodeTerm, ...] = ()


class _NodeAffinity(Body, frozen=True):
    required: _NodeTerms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _PodTerm(Body, frozen=True):
    topology_key: str = ""


class _PodAffinity(Body, frozen=True):
    required: tuple[_PodTerm, ...] | None = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(Body, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _FieldRef(Body, frozen=True):
    field_path: str = ""


class _FieldItem(Body, frozen=True):
    field_ref: _FieldRef | None = None


class _FieldVolume(Body, frozen=True):
    items: tuple[_FieldItem, ...] | None = ()


class _ProjectedSource(Body, frozen=True):
    downward_api: _FieldVolume | None = msgspec.field(default=None, name="downwardAPI")


class _Projected(Body, frozen=True):
    sources: tuple[_ProjectedSource, ...] | None = ()


class _Volume(Body, frozen=True):
    downward_api: _FieldVolume | None = msgspec.field(default=None, name="downwardAPI")
    projected: _Projected | None = None


class PodSpec(Body, frozen=True):
    """The needed part of the spec of a pod or template."""

    node_name: str = ""
    hostname: str = ""
    restart_policy: str = "Always"
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] | None = ()
    overhead: dict[str, str | int] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[_Toleration, ...] | None = ()
    affinity: _Affinity | None = None
    volumes: tuple[_Volume, ...] | None = ()
    service_account_name: str = ""
    termination_grace_period_seconds: float | None = None

    def demand(self) -> Demand:
        """What the scheduler is asked for; an affinity to other pods but their absence is not reckoned with.

        Raises:
            ValueError: An amount is none.
        """
        return Demand(
            requests=self.requests(),
            selector=self.node_selector or {},
            tolerations=tuple(_toleration(each) for each in self.tolerations or ()),
            affinity=self._affinity(),
            apart=self._apart(),
        )

    def requests(self) -> Resources:
        """What the pod takes of a node: its containers together or the largest of what runs before them.

        Raises:
            ValueError: An amount is none.
        """
        steady = [_asked(each) for each in self.containers]
        first: dict[str, int] = {}
        for container in self.init_containers or ():
            asked = _asked(container)
            if container.restart_policy == "Always":  # Stays beside the others.
                steady.append(asked)
            first = _largest(first, _sum([asked, *steady[len(self.containers) :]]))
        return _sum([_largest(first, _sum(steady)), amounts_of(self.overhead)])

    def shown(self) -> frozenset[str]:
        """Our annotations that a volume exposes as files."""
        volumes = [each.downward_api for each in self.volumes or ()]
        for volume in self.volumes or ():
            volumes += [source.downward_api for source in (volume.projected or _Projected()).sources or ()]
        paths = (item.field_ref for volume in volumes if volume is not None for item in volume.items or ())
        return frozenset(
            path.field_path.removeprefix("metadata.annotations['").removesuffix("']")
            for path in paths
            if path is not None and path.field_path.startswith(f"metadata.annotations['{PREFIX}")
        )

    def _affinity(self) -> tuple[tuple[Requirement, ...], ...]:
        node = None if self.affinity is None else self.affinity.node_affinity
        if node is None or node.required is None:
            return ()
        return tuple(_term(each) for each in node.required.node_selector_terms)

    def _apart(self) -> bool:
        others = None if self.affinity is None else self.affinity.pod_anti_affinity
        return others is not None and any(each.topology_key == _HOSTNAME for each in others.required or ())


def _toleration(read: _Toleration) -> Toleration:
    return Toleration(
        key=read.key,
        exists=read.operator == "Exists",
        value=read.value,
        effect=Effect(read.effect) if read.effect else None,
    )


def _term(read: _NodeTerm) -> tuple[Requirement, ...]:
    """The one field that can be asked for is `metadata.name`, which is no label's name."""
    return tuple(
        Requirement(key=each.key, operator=each.operator, values=frozenset(each.values or ()))
        for each in (*(read.match_expressions or ()), *(read.match_fields or ()))
    )


def _asked(container: _Container) -> dict[str, int]:
    """The requests; a limit stands in for a missing request."""
    amounts = container.resources
    return {**amounts_of(amounts.limits), **amounts_of(amounts.requests)}


def amounts_of(written: Mapping[str, str | int] | None) -> dict[str, int]:
    """Amounts by name, in thousandths.

    Raises:
        ValueError: One is none.
    """
    return {name: thousandths(str(amount)) for name, amount in (written or {}).items()}


def _sum(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for amounts in each:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def _largest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}
