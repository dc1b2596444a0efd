"""Decodes the spec of a pod or template, and computes what it demands of a node."""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from operator import add

import msgspec

from supervisor.cluster.annotations import PREFIX
from supervisor.domain.capacity import Demand, Effect, LabelOperator, LabelRequirement, Resources, Toleration

_HOSTNAME = "kubernetes.io/hostname"

_FACTORS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_AMOUNT = re.compile(
    r"([+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20}))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)

_KNOWN = 1024
"""Quantities that are parsed once: tens of thousands of pods have few different ones."""


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """The base of decoded parts of objects: Kubernetes writes the names of fields in camel case."""


class _Amounts(Body, frozen=True):
    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class _ContainerSpec(Body, frozen=True):
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


class _ProjectedFields(Body, frozen=True):
    sources: tuple[_ProjectedSource, ...] | None = ()


class _Volume(Body, frozen=True):
    downward_api: _FieldVolume | None = msgspec.field(default=None, name="downwardAPI")
    projected: _ProjectedFields | None = None


class SchedulingGroup(Body, frozen=True):
    """The PodGroup of Kubernetes that a pod belongs to; its name is empty if it belongs to none."""

    pod_group_name: str = ""


class PodSpec(Body, frozen=True):
    """The part of the spec of a pod or template that the supervisor reads."""

    node_name: str = ""
    hostname: str = ""
    restart_policy: str = "Always"
    containers: tuple[_ContainerSpec, ...] = ()
    init_containers: tuple[_ContainerSpec, ...] | None = ()
    overhead: dict[str, str | int] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[_Toleration, ...] | None = ()
    affinity: _Affinity | None = None
    volumes: tuple[_Volume, ...] | None = ()
    service_account_name: str = ""
    termination_grace_period_seconds: float | None = None
    scheduling_group: SchedulingGroup = SchedulingGroup()

    def demand(self) -> Demand:
        """Returns the demand that the scheduler has to meet, with anti-affinities but without affinities to other pods.

        Raises:
            ValueError: A quantity is invalid.
        """
        tolerations = (
            Toleration(
                key=each.key,
                exists=each.operator == "Exists",
                value=each.value,
                effect=Effect(each.effect) if each.effect else None,
            )
            for each in self.tolerations or ()
        )
        node = None if self.affinity is None else self.affinity.node_affinity
        terms = () if node is None or node.required is None else node.required.node_selector_terms
        # The one field that a term can match is `metadata.name`, which is no label's name.
        affinity = (
            tuple(
                LabelRequirement(key=each.key, operator=each.operator, values=frozenset(each.values or ()))
                for each in (*(term.match_expressions or ()), *(term.match_fields or ()))
            )
            for term in terms
        )
        others = None if self.affinity is None else self.affinity.pod_anti_affinity
        return Demand(
            requests=self.requests(),
            selector=self.node_selector or {},
            tolerations=tuple(tolerations),
            affinity=tuple(affinity),
            apart=others is not None and any(each.topology_key == _HOSTNAME for each in others.required or ()),
        )

    def requests(self) -> Resources:
        """Returns the resources that the pod takes of a node: the sum of its containers, or its largest init container.

        Raises:
            ValueError: A quantity is invalid.
        """
        containers = [*self.containers, *(self.init_containers or ())]
        # A limit stands in for a missing request.
        each = [{**amounts_of(one.resources.limits), **amounts_of(one.resources.requests)} for one in containers]
        number = len(self.containers)
        steady, first = each[:number], dict[str, int]()
        for container, requests in zip(containers[number:], each[number:], strict=True):
            if container.restart_policy == "Always":  # Stays beside the others.
                steady.append(requests)
            first = _combined(max, [first, _combined(add, [requests, *steady[number:]])])
        return _combined(add, [_combined(max, [first, _combined(add, steady)]), amounts_of(self.overhead)])

    def shown(self) -> frozenset[str]:
        """Returns the names of our annotations that a volume exposes as files."""
        volumes = [each.downward_api for each in self.volumes or ()]
        for volume in self.volumes or ():
            volumes += [source.downward_api for source in (volume.projected or _ProjectedFields()).sources or ()]
        paths = (item.field_ref for volume in volumes if volume is not None for item in volume.items or ())
        return frozenset(
            path.field_path.removeprefix("metadata.annotations['").removesuffix("']")
            for path in paths
            if path is not None and path.field_path.startswith(f"metadata.annotations['{PREFIX}")
        )


def amounts_of(written: Mapping[str, str | int] | None) -> dict[str, int]:
    """Returns quantities by name, in thousandths.

    Raises:
        ValueError: One is invalid.
    """
    return {name: thousandths(str(amount)) for name, amount in (written or {}).items()}


def _combined(how: Callable[[int, int], int], parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns amounts by name, combined from those of all parts. A name that a part lacks counts as 0."""
    combined: dict[str, int] = {}
    for amounts in parts:
        for name, amount in amounts.items():
            combined[name] = how(combined.get(name, 0), amount)
    return combined


@lru_cache(_KNOWN)
def thousandths(text: str) -> int:
    """Parses a quantity such as `4`, `500m`, `16Gi` or `1e3` and rounds it up.

    Raises:
        ValueError: It is invalid.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no amount")
    number, exponent, suffix = match.groups()
    factor = Decimal(f"1e{exponent}") if exponent else _FACTORS[suffix or ""]
    return int((Decimal(number) * factor * 1000).to_integral_value(ROUND_CEILING))
