"""Whatever tenants write into pods, nodes and Events, each signal is read and stored without an error."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from node_agent import pods as agents
from supervisor.cluster.events import read_event
from supervisor.cluster.objects import node_or_outline, pod_or_outline
from supervisor.decide.notices import Signal, apply_signal
from supervisor.decide.policy import Policy
from supervisor.ingest.cluster.signals import (
    drain_signal,
    drill_signal,
    event_signal,
    maintenance_signal,
    node_signal,
    pod_signal,
    pod_subject,
    taint_signals,
)
from supervisor.store.codec import NOTICE_CODEC
from tests.supervisor.decide.decide_builders import T0

_INSTANTS = ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00", "0001-01-01T00:00:00+14:00")
_EDGES: tuple[Any, ...] = (None, -1, 2.5e11, 1e308, 5e-324, "9" * 5000, "inf", "nan", "", [None], {}, *_INSTANTS)
_AT = "2023-11-14T22:13:20Z"
_PREFIX = "job-supervisor.kube-ai.io/"
_POD: dict[str, Any] = {
    "metadata": {"deletionTimestamp": _AT, "deletionGracePeriodSeconds": 30},
    "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30},
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "lastTransitionTime": _AT},
            {"type": "ContainerInstanceExpired", "status": "True", "lastTransitionTime": _AT},
        ],
        "containerStatuses": [{"state": {"terminated": {"finishedAt": _AT, "exitCode": 1}}}] * 2,
    },
}
_NODE: dict[str, Any] = {
    "metadata": {
        "annotations": {f"{_PREFIX}drain": "ann", f"{_PREFIX}drain-at": _AT},
        "labels": {"cloud.google.com/scheduled-maintenance-time": "1700000000"},
    },
    "spec": {"taints": [{"key": "gone", "effect": "NoExecute", "timeAdded": _AT}]},
    "status": {"conditions": [{"type": "InstanceExpired", "status": "True", "lastTransitionTime": _AT}]},
}
_EVENT: dict[str, Any] = {
    "metadata": {"creationTimestamp": _AT, "annotations": {f"{_PREFIX}simulated-lead-seconds": "30"}},
    "involvedObject": {"kind": "Pod", "name": "p", "uid": "u"},
    "reason": "Reclaim",
    "firstTimestamp": _AT,
    "lastTimestamp": _AT,
    "eventTime": _AT,
    "series": {"lastObservedTime": _AT},
}


def _changed(value: Any) -> Iterator[Any]:
    """The value with each part of it, one after the other, replaced by each edge."""
    yield from _EDGES
    for key, each in value.items() if isinstance(value, dict) else ():
        for part in _changed(each):
            yield {**value, key: part}
    for index, each in enumerate(value) if isinstance(value, list) else ():
        for part in _changed(each):
            yield [*value[:index], part, *value[index + 1 :]]


def _objects(original: dict[str, Any]) -> Iterator[bytes]:
    """The object with each of its parts changed; its identity is the API server's."""
    identity = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    for changed in _changed(original):
        if not isinstance(changed, dict):
            continue
        metadata = changed.get("metadata")
        own = metadata if isinstance(metadata, dict) else {}
        annotations = own.get("annotations", {})
        opted_in = {**annotations, f"{_PREFIX}spot-instance": "true"} if isinstance(annotations, dict) else annotations
        yield msgspec.json.encode({**changed, "metadata": {**own, "annotations": opted_in, **identity}})


def _stored(*signals: Signal | None) -> None:
    """Takes in the signals, and writes their notices as custom resources."""
    for signal in signals:
        notice = None if signal is None else apply_signal(None, signal, T0, T0, Policy())
        if notice is not None:
            msgspec.json.encode(NOTICE_CODEC.encode(notice, None, 1))


def _pod_signals(data: bytes) -> None:
    _stored(pod_signal(pod_or_outline(data, frozenset())))
    pod = agents.read_pod(data)
    agents.report(None, pod, agents.classify(pod), T0, T0)


def _node_signals(data: bytes) -> None:
    node = node_or_outline(data)
    signals = (node_signal(node, 30.0), maintenance_signal(node), drain_signal(node))
    _stored(*signals, *taint_signals(node, {"gone": 30.0}, T0))


def _event_signals(data: bytes) -> None:
    subject = pod_subject(pod_or_outline(next(_objects(_POD)), frozenset()))
    event = read_event(data)
    _stored(event_signal([(event, 180.0)], subject), drill_signal([event], subject))


@pytest.mark.parametrize(
    ("original", "follow"),
    [(_POD, _pod_signals), (_NODE, _node_signals), (_EVENT, _event_signals)],
    ids=["pod", "node", "event"],
)
def test_no_part_of_an_object_stops_the_supervisor_or_an_agent(original: dict[str, Any], follow: Any) -> None:
    """An object that cannot be decoded is refused as such; all others have a signal, or none."""
    tried = 0
    for data in _objects(original):
        try:
            follow(data)
        except msgspec.MsgspecError:
            continue
        tried += 1
    assert tried > 50
