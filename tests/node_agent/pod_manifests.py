"""Pods as the API server shows them."""

import json
from typing import Any

from node_agent.pods import WatchedPod, read_pod

UID = "11111111-2222-3333-4444-555555555555"
MANAGED = "job-supervisor.kube-ai.io/managed-by-job-supervisor"
SPOT = "job-supervisor.kube-ai.io/spot-instance"
NOON = 1_795_262_400.0
"""12:00:00Z on 2026-11-21, in Unix seconds."""


def at(seconds: int) -> str:
    """So many seconds after noon, as the API server writes it."""
    return f"2026-11-21T12:{seconds // 60:02}:{seconds % 60:02}Z"


def disruption(reason: str, since: int = 0, *, status: str = "True", message: str = "") -> dict[str, Any]:
    return {
        "type": "DisruptionTarget",
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": at(since),
    }


def manifest(  # noqa: PLR0913 - one for each thing that a pod may have
    *conditions: dict[str, Any],
    phase: str = "Running",
    annotations: dict[str, str] | None = None,
    deleted: int | None = None,
    ended: int | None = None,
    grace: int = 30,
    name: str = "worker-0",
    uid: str = UID,
    **status: Any,
) -> bytes:
    """A pod that is opted in; asked to go `deleted` seconds after noon, its container ended `ended` seconds after."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "space",
        "uid": uid,
        "resourceVersion": "7",
        "creationTimestamp": at(0),
        "labels": {"much": "more"},
        "annotations": {MANAGED: "true"} if annotations is None else annotations,
        "managedFields": [{"manager": "somebody"}],
    }
    if deleted is not None:
        metadata |= {"deletionTimestamp": at(deleted + grace), "deletionGracePeriodSeconds": grace}
    ready = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": at(0)}
    state = (
        {"running": {"startedAt": at(0)}} if ended is None else {"terminated": {"exitCode": 1, "finishedAt": at(ended)}}
    )
    return json.dumps(
        {
            "kind": "WatchedPod",
            "apiVersion": "v1",
            "metadata": metadata,
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": grace, "containers": [{"name": "main"}]},
            "status": {
                "phase": phase,
                "conditions": [ready, *conditions],
                "containerStatuses": [{"name": "main", "state": state}],
                **status,
            },
        }
    ).encode()


def pod(*conditions: dict[str, Any], **changes: Any) -> WatchedPod:
    return read_pod(manifest(*conditions, **changes))
