"""Keeps new pods off nodes that will be reclaimed, and if possible off nodes that may be."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from supervisor.webhook.patch import Add, appended
from supervisor.webhook.pods import NewPod, NodeAffinity, Term

MAX_NODES = 100
"""Nodes that one pod names in all its terms together. They take some 10 KiB, and the scheduler compares each with every
node. A pod that lands on another noticed node is handled as without the webhook."""

_NAME = "metadata.name"
_HOSTNAME = "kubernetes.io/hostname"
_AFFINITY = "/spec/affinity"
_NODES = f"{_AFFINITY}/nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HINT_WEIGHT = 10
"""Of 100: a preference of the job's own usually counts for more."""


@dataclass(frozen=True, slots=True)
class AvoidedNodes:
    """Nodes that new pods avoid, the most important ones first.

    Attributes:
        noticed: No pod may start there.
        hinted: A reclaim may come, at a time that nobody knows: a pod starts there if there is no other room.
    """

    noticed: Sequence[str] = ()
    hinted: Sequence[str] = ()


def avoidance_patch(pod: NewPod, avoid: AvoidedNodes) -> list[Add]:
    """The patch that keeps a pod off noticed nodes, and has it prefer others to hinted ones.

    Pods that are meant for certain nodes are not changed: those of a DaemonSet, or with a node's name.
    """
    if _is_placed(pod):
        return []
    affinity = pod.spec.affinity
    own = None if affinity is None else affinity.node_affinity
    if own is not None:
        return [*_required_patch(own, avoid.noticed), *_preferred_patch(own, avoid)]
    added: dict[str, object] = {}
    if avoid.noticed:
        added[_REQUIRED] = _one_term(avoid.noticed)
    if hinted := _mentioned(avoid, ()):
        added[_PREFERRED] = [_preference(hinted)]
    if not added:
        return []
    return [Add(_AFFINITY, {"nodeAffinity": added}) if affinity is None else Add(_NODES, added)]


def _required_patch(own: NodeAffinity, nodes: Sequence[str]) -> list[Add]:
    if not nodes:
        return []
    if own.required is None:
        return [Add(f"{_NODES}/{_REQUIRED}", _one_term(nodes))]
    return _in_each(own.required.node_selector_terms, nodes)


def _preferred_patch(own: NodeAffinity, avoid: AvoidedNodes) -> list[Add]:
    named = [node for each in own.preferred or () for node in _excluded(each.preference)]
    hinted = _mentioned(avoid, named)
    return appended(f"{_NODES}/{_PREFERRED}", own.preferred, [_preference(hinted)]) if hinted else []


def _mentioned(avoid: AvoidedNodes, named: Collection[str]) -> Sequence[str]:
    """The hinted nodes for which there is room beside those that the pod names already."""
    room = max(0, MAX_NODES - min(MAX_NODES, len(avoid.noticed)) - len(named))
    return [node for node in avoid.hinted if node not in named][:room]


def _preference(nodes: Sequence[str]) -> Mapping[str, object]:
    return {"weight": _HINT_WEIGHT, "preference": {"matchFields": [_not_on(node) for node in nodes]}}


def _is_placed(pod: NewPod) -> bool:
    by_name = pod.spec.node_name or _HOSTNAME in (pod.spec.node_selector or {})
    return bool(by_name) or any(owner.kind == "DaemonSet" for owner in pod.owners)


def _one_term(nodes: Sequence[str]) -> Mapping[str, object]:
    return {"nodeSelectorTerms": [{"matchFields": [_not_on(node) for node in nodes[:MAX_NODES]]}]}


def _in_each(terms: Sequence[Term], nodes: Sequence[str]) -> list[Add]:
    """Excludes the nodes in every term, as a node only has to match one of them."""
    patch: list[Add] = []
    for number, term in enumerate(terms):
        named = _excluded(term)
        room = max(0, MAX_NODES // len(terms) - len(named))
        # An empty term matches no node, but would match all others with an exclusion in it.
        if (term.match_fields or term.match_expressions) and not _names_nodes(term):
            missing = [_not_on(node) for node in nodes if node not in named][:room]
            path = f"{_NODES}/{_REQUIRED}/nodeSelectorTerms/{number}/matchFields"
            patch += appended(path, term.match_fields, missing)
    return patch


def _excluded(term: Term) -> Collection[str]:
    return {value for each in term.match_fields or () if each.operator == "NotIn" for value in each.values or ()}


def _names_nodes(term: Term) -> bool:
    each = (*(term.match_fields or ()), *(term.match_expressions or ()))
    return any(one.operator == "In" and one.key in (_NAME, _HOSTNAME) for one in each)


def _not_on(node: str) -> Mapping[str, object]:
    """One requirement for each node: Kubernetes accepts a single value for a field."""
    return {"key": _NAME, "operator": "NotIn", "values": [node]}
