"""Keeps new pods off nodes that will be reclaimed: a pod that is bound to one is doomed at once."""

from collections.abc import Mapping, Sequence

from supervisor.webhook.patch import Add, appended
from supervisor.webhook.pods import NewPod, Term

MAX_NODES = 100
"""Named in one pod, all of its terms together: some 10 KiB of it, and the scheduler compares each with every node. A
pod that lands on one that was left out is treated as it would be without this."""

_NAME = "metadata.name"
_HOSTNAME = "kubernetes.io/hostname"
_AFFINITY = "/spec/affinity"
_NODES = f"{_AFFINITY}/nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def avoiding(pod: NewPod, nodes: Sequence[str]) -> list[Add]:
    """Has the pod run on none of those nodes, the first ones being the most important.

    One that is meant for certain nodes alone stays that: those of a DaemonSet, or by a node's name.
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
    """A node has to fulfil one of them alone, so that each has to leave the nodes out."""
    patch: list[Add] = []
    for number, term in enumerate(terms):
        named = {value for each in term.match_fields or () if each.operator == "NotIn" for value in each.values or ()}
        room = max(0, MAX_NODES // len(terms) - len(named))
        # An empty term is fulfilled by no node, and by all others once there is something in it.
        if (term.match_fields or term.match_expressions) and not _names_nodes(term):
            missing = [_not_on(node) for node in nodes if node not in named][:room]
            path = f"{_NODES}/{_REQUIRED}/nodeSelectorTerms/{number}/matchFields"
            patch += appended(path, term.match_fields, missing)
    return patch


def _names_nodes(term: Term) -> bool:
    each = (*(term.match_fields or ()), *(term.match_expressions or ()))
    return any(one.operator == "In" and one.key in (_NAME, _HOSTNAME) for one in each)


def _not_on(node: str) -> Mapping[str, object]:
    """One for each: of a field Kubernetes takes a single value."""
    return {"key": _NAME, "operator": "NotIn", "values": [node]}
