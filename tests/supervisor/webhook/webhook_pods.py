"""Pods as an API server sends them to a webhook, and the pods after its patch."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch
import msgspec

from supervisor.webhook.mutation import PodInjection, PodMutation
from supervisor.webhook.server import AdmissionRequest, review_mutation
from tests.testkit.schemas import validate

AUDIENCE = "job-supervisor.kube-ai.io"
PREFIX = "job-supervisor.kube-ai.io/"
OPTED_IN = {f"{PREFIX}managed-by-job-supervisor": "true"}
CA = "-----BEGIN CERTIFICATE-----\nmade up\n-----END CERTIFICATE-----\n"
GIFTS = PodInjection(address="https://supervisor.test:8471", ca=CA, audience=AUDIENCE)
NEWEST = "1.36"
OLDEST = "1.30"

Manifest = dict[str, Any]


def container(name: str = "main", **parts: Any) -> Manifest:
    return {"name": name, "image": "none", **parts}


def pod(
    *, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, **spec: Any
) -> Manifest:
    """A pod that is opted in, unless its annotations say otherwise."""
    metadata = {"name": "pod", "annotations": dict(OPTED_IN if annotations is None else annotations)}
    if labels is not None:
        metadata["labels"] = dict(labels)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container()], **spec}}


def launcher(**spec: Any) -> Manifest:
    edl = {"name": "training-job-hostfile", "mountPath": "/etc/edl"}
    shown = {"name": "training-job-config", "mountPath": "/etc/mpi"}
    spec = {
        "containers": [container("et", volumeMounts=[edl, shown])],
        "initContainers": [container("init-hostfile", volumeMounts=[edl, shown])],
        "volumes": [
            {"name": "training-job-hostfile", "emptyDir": {}},
            {"name": "training-job-config", "configMap": {"name": "bert-config"}},
        ],
        **spec,
    }
    labels = {"group-name": "kai.alibabacloud.com", "training-job-name": "bert", "training-job-role": "launcher"}
    return pod(labels=labels, **spec)


def review(made: object, **request: Any) -> Manifest:
    asked = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team",
        "userInfo": {"username": "somebody"},
        "object": made,
        "oldObject": None,
        "dryRun": False,
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def outcome(made: object, injection: PodInjection = GIFTS, **request: Any) -> PodMutation:
    asked = json.dumps(review(made, **request)["request"])
    return review_mutation(msgspec.json.decode(asked, type=AdmissionRequest), injection)


def operations(mutation_for: PodMutation) -> list[Manifest]:
    return list(json.loads(msgspec.json.encode(mutation_for.patch)))


def patched(made: Manifest, injection: PodInjection = GIFTS) -> Manifest:
    after = made
    for operation in operations(outcome(made, injection)):
        assert operation["op"] == "add"
        path = jsonpatch.JsonPointer(operation["path"])
        assert operation["path"].endswith("/-") or path.resolve(after, None) in (None, []), operation["path"]
        after = jsonpatch.apply_patch(after, [operation])
    return dict(after)


def valid(made: Manifest, version: str = NEWEST) -> None:
    """Fails where the schema of that Kubernetes has no such pod."""
    validate(made, version)


def volume(made: Manifest) -> Manifest | None:
    return next((each for each in made["spec"].get("volumes", []) if each["name"] == "job-supervisor"), None)


def files(made: Manifest) -> dict[str, str]:
    """The volume's content by file: a field's path, or the token's audience."""
    given = volume(made)
    assert given is not None
    token, fields = given["projected"]["sources"]
    shown = {item["path"]: item["fieldRef"]["fieldPath"] for item in fields["downwardAPI"]["items"]}
    return {**shown, token["serviceAccountToken"]["path"]: token["serviceAccountToken"]["audience"]}


def mounts(one: Manifest) -> list[Manifest]:
    return [each for each in one.get("volumeMounts", []) if each["name"] == "job-supervisor"]


def answered(body: bytes) -> tuple[Manifest, list[Manifest]]:
    response = json.loads(body)["response"]
    return response, json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def allows(terms: Sequence[Manifest] | None, node: str, labels: Mapping[str, str]) -> bool:
    """Whether a scheduler may take that node: by any term, of which an empty one means none; without terms, all."""
    if terms is None:
        return True
    return any(_fulfils(term, node, labels) for term in terms)


def _fulfils(term: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    asked = [(each, labels.get(each["key"])) for each in term.get("matchExpressions") or []]
    asked += [(each, node) for each in term.get("matchFields") or []]
    return bool(asked) and all(_matches(each, value) for each, value in asked)


def _matches(requirement: Manifest, value: str | None) -> bool:
    match requirement["operator"]:
        case "In":
            return value in requirement["values"]
        case "NotIn":
            return value not in requirement["values"]
        case operator:
            return (value is not None) is (operator == "Exists")


def terms(made: Manifest) -> list[Manifest] | None:
    node = (made["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else list(required["nodeSelectorTerms"])
