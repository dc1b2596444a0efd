"""Keeps new pods off nodes that will be reclaimed."""

from collections.abc import Mapping, Sequence

from supervisor.webhook.patch import Add, appended
from supervisor.webhook.pods import NewPod, Term

MAX_NODES = 100
"""Nodes that one pod names in all its terms together. They take some 10 KiB, and the scheduler compares each with every
node. A pod that lands on another noticed node is handled as without the webhook."""

_NAME = "metadata.name"
_HOSTNAME = "kubernetes.io/hostname"
_AFFINITY = "/spec/affinity"
_NODES = f"{_AFFINITY}/nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def avoidance_patch(pod: NewPod, nodes: Sequence[str]) -> list[Add]:
    """The patch that keeps a pod off these nodes, the most important ones first.

    Pods that are meant for certain nodes are not changed: those of a DaemonSet, or with a node's name.
    """
    if not nodes or _is_placed(pod):
        return []
    affinity = pod.spec.affinity
    if affinity is None:
        return [Add(_AFFINITY, {"nodeAffinity": {_REQUIRED: _one_term(nodes)}})]
    if affinity.node_affinity is None:
        return [Add(_NODES, {_REQUIRED: _one_term(nodes)})]
    required = affinity.node_affinity.required
    if required is None:
        return [Add(f"{_NODES}/{_REQUIRED}", _one_term(nodes))]
    return _in_each(required.node_selector_terms, nodes)


def _is_placed(pod: NewPod) -> bool:
    by_name = pod.spec.node_name or _HOSTNAME in (pod.spec.node_selector or {})
    return bool(by_name) or any(owner.kind == "DaemonSet" for owner in pod.owners)


def _one_term(nodes: Sequence[str]) -> Mapping[str, object]:
    return {"nodeSelectorTerms": [{"matchFields": [_not_on(node) for node in nodes[:MAX_NODES]]}]}


def _in_each(terms: Sequence[Term], nodes: Sequence[str]) -> list[Add]:
    """Excludes the nodes in every term, as a node only has to match one of them."""
    patch: list[Add] = []
    for number, term in enumerate(terms):
        named = {value for each in term.match_fields or () if each.operator == "NotIn" for value in each.values or ()}
        room = max(0, MAX_NODES // len(terms) - len(named))
        # An empty term matches no node, but would match all others with an exclusion in it.
        if (term.match_fields or term.match_expressions) and not _names_nodes(term):
            missing = [_not_on(node) for node in nodes if node not in named][:room]
            path = f"{_NODES}/{_REQUIRED}/nodeSelectorTerms/{number}/matchFields"
            patch += appended(path, term.match_fields, missing)
    return patch


def _names_nodes(term: Term) -> bool:
    each = (*(term.match_fields or ()), *(term.match_expressions or ()))
    return any(one.operator == "In" and one.key in (_NAME, _HOSTNAME) for one in each)


def _not_on(node: str) -> Mapping[str, object]:
    """One requirement for each node: Kubernetes accepts a single value for a field."""
    return {"key": _NAME, "operator": "NotIn", "values": [node]}
