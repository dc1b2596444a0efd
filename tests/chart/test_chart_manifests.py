import base64
import json
from typing import Any

import pytest

from supervisor.check.job import CheckedKind
from supervisor.check.manifests import SHAPES
from supervisor.webhook.server import CHECK_PATH, PATH
from tests.chart.chart_rendering import (
    WITH_REGISTRY,
    Helm,
    Manifest,
    Values,
    environment,
    images,
    one,
    pod_of,
    workloads,
)
from tests.controlplane.webhook.webhook_world import documented
from tests.testkit.schemas import validate

_VERSIONS = [f"1.{minor}.0" for minor in range(30, 38)]
_MANY: Values = {
    "images": {
        "registry": "registry.example.com/arena/",
        "pullSecrets": [{"name": "registry"}],
        "pullPolicy": "Always",
    },
    "tls": {
        "mode": "certManager",
        "certManager": {"issuerRef": {"name": "ours", "kind": "ClusterIssuer"}},
        "caConfigMap": "",
        "caBundle": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n",
        "extraNames": ["supervisor.example.com", "10.1.2.3", "fd00::1"],
    },
    "networkPolicy": {"nodeCIDRs": ["10.0.0.0/8"]},
    "webhook": {"excludedNamespaces": ["kube-system", "monitoring"]},
    "metrics": {"enabled": True, "dashboards": {"enabled": True}},
    "notifications": {"targets": [{"name": "team", "urlSecret": {"name": "slack"}}]},
    "prices": {"as_of": "2026-11-01", "currency": "EUR", "machines": [{"type": "big", "spot": 1.5}]},
    "supervisor": {
        "replicas": 3,
        "image": {"tag": "1.2.3"},
        "spread": "DoNotSchedule",
        "publicAddress": "https://supervisor.example.com:443",
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "serviceAnnotations": {"e": "f"},
        "settings": {"leaseName": "our-lease", "tokenAudience": "ours", "reclaimEvents": ["A:1", "B"]},
    },
    "agent": {
        "image": {"digest": f"sha256:{'0' * 64}"},
        "sources": ["aliyun", "file"],
        "maxUnavailable": 3,
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "extraVolumes": [{"name": "file", "hostPath": {"path": "/run/reclaim"}}],
        "extraVolumeMounts": [{"name": "file", "mountPath": "/run/reclaim", "readOnly": True}],
        "settings": {"filePath": "/run/reclaim/notice", "notSpotLabels": ["a=b"]},
    },
}
_OWN_SECRET: Values = {
    "tls": {"mode": "existingSecret", "existingSecret": "certificate", "caConfigMap": "authorities"},
    "webhook": {"caBundle": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"},
}
_FEW: Values = {
    "fullnameOverride": "us",
    "crds": {"install": False},
    "networkPolicy": {"enabled": False},
    "webhook": {"enabled": False},
    "supervisor": {"replicas": 1, "priorityClassName": "", "resources": {}, "nodeSelector": {"kubernetes.io/os": None}},
    "agent": {"enabled": False},
}
_LED = {("Service", "elastic-job-supervisor"), ("Service", "us")}
_MATRIX: dict[str, Values] = {
    "defaults": {},
    "everything": _MANY,
    "little": _FEW,
    "own-secret": _OWN_SECRET,
    "pods-network": {"agent": {"hostNetwork": False, "priorityClassName": "", "tolerations": []}},
    "page": {"statusPage": {"ingress": {"enabled": True, "host": "page.example.com", "tlsSecret": "page"}}},
    "pools": {
        "agent": {
            "pools": {
                "cloud": {"nodeSelector": {"where": "cloud"}},
                "metal": {"nodeSelector": {"where": "metal"}, "hostNetwork": False},
            }
        },
    },
    "no-budget": {"supervisor": {"podDisruptionBudget": {"enabled": False}}},
}


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("values", _MATRIX.values(), ids=_MATRIX)
def test_every_object_is_valid_in_every_version(helm: Helm, values: Values, version: str) -> None:
    objects = helm.render(values, version)
    for each in objects:
        if each["apiVersion"] != "cert-manager.io/v1":
            validate(each, version)
    assert len(objects) > 6


@pytest.mark.parametrize("values", _MATRIX.values(), ids=_MATRIX)
def test_all_names_and_selectors_fit_each_other(helm: Helm, values: Values) -> None:
    """Services, budget and policy select the pods of the Deployment and no agent; roles bind accounts that exist."""
    objects = helm.render(values)
    labels = {each["kind"]: each["spec"]["template"]["metadata"]["labels"] for each in workloads(objects)}
    labels |= {each["kind"]: each["metadata"]["labels"] for each in objects if each["kind"] == "Pod"}
    for each in objects:
        selector = _selector(each)
        if selector and each["kind"] != "DaemonSet":
            leads = selector.pop("job-supervisor.kube-ai.io/leader", None)
            # The leader alone takes streams, and every replica answers the webhook.
            assert leads == ("true" if (each["kind"], each["metadata"]["name"]) in _LED else None)
            assert selector.items() <= labels["Deployment"].items()
            assert not selector.items() <= labels.get("DaemonSet", {}).items()
            assert not selector.items() <= labels["Pod"].items()
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    assert {subject["name"] for each in objects for subject in each.get("subjects", [])} == accounts
    assert {pod_of(each)["serviceAccountName"] for each in workloads(objects)} == accounts


@pytest.mark.parametrize("values", _MATRIX.values(), ids=_MATRIX)
def test_every_container_is_restricted(helm: Helm, values: Values) -> None:
    """As Pod Security's highest level wants it, with a read-only root; the host's network is the one exception."""
    objects = helm.render(values)
    for pod in (*map(pod_of, workloads(objects)), one(objects, "Pod", f"{_name(objects)}-test")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostPID", "hostIPC"} & set(pod)
        # Else a Service called job-supervisor sets JOB_SUPERVISOR_PORT, which is no setting.
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_agents_use_their_nodes_network_and_open_nothing_on_it(helm: Helm) -> None:
    pod = pod_of(one(helm.render(), "DaemonSet", "elastic-job-supervisor-agent"))
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    [container] = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"
    assert "ports" not in container
    [probes] = [each["value"] for each in container["env"] if each["name"] == "NODE_AGENT_PROBE_ADDRESS"]
    assert probes == "127.0.0.1:8474"


def test_an_agent_is_not_the_first_process_of_its_container(helm: Helm) -> None:
    """The kernel kills no first process that is frozen; a policy may forbid the shared namespace."""
    pods = (
        pod_of(one(helm.render(given), "DaemonSet", "elastic-job-supervisor-agent"))
        for given in ({}, {"agent": {"shareProcessNamespace": False}})
    )
    assert [pod.get("shareProcessNamespace") for pod in pods] == [True, None]


def test_agents_in_the_pods_network_are_probed_there(helm: Helm) -> None:
    objects = helm.render({"agent": {"hostNetwork": False}})
    pod = pod_of(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))
    assert not {"hostNetwork", "dnsPolicy"} & set(pod)
    assert "host" not in pod["containers"][0]["livenessProbe"]["httpGet"]
    peers = [peer for rule in one(objects, "NetworkPolicy")["spec"]["ingress"] for peer in rule["from"]]
    assert any("podSelector" in peer for peer in peers)


def test_the_agents_account_is_the_one_that_the_supervisor_believes(helm: Helm) -> None:
    objects = helm.render({"fullnameOverride": "us"})
    agent = pod_of(one(objects, "DaemonSet", "us-agent"))
    assert environment(one(objects, "Deployment", "us"))["JOB_SUPERVISOR_AGENT_ACCOUNT"] == (
        f"arena-system/{agent['serviceAccountName']}"
    )


def test_agents_token_has_the_audience_that_the_supervisor_wants(helm: Helm) -> None:
    objects = helm.render(_MANY)
    [volume, _] = pod_of(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))["volumes"]
    token, authorities = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "ours"
    assert authorities["configMap"]["name"] == "elastic-job-supervisor-ca"
    assert environment(one(objects, "Deployment"))["JOB_SUPERVISOR_TOKEN_AUDIENCE"] == "ours"


def test_the_role_names_the_lease_that_is_set(helm: Helm) -> None:
    rules = one(helm.render(_MANY), "Role")["rules"]
    named = [rule["resourceNames"] for rule in rules if rule["resources"] == ["leases"] and "resourceNames" in rule]
    assert named == [["our-lease"]]


def test_the_certificate_has_the_names_that_agents_and_pods_connect_to(helm: Helm) -> None:
    objects = helm.render(_MANY)
    spec = one(objects, "Certificate")["spec"]
    assert spec["ipAddresses"] == ["10.1.2.3", "fd00::1"]
    assert spec["dnsNames"][-1] == "supervisor.example.com"
    agent = environment(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))
    assert agent["NODE_AGENT_SUPERVISOR"].partition(":")[0] in spec["dnsNames"]
    mounted = {volume["name"]: volume for volume in pod_of(one(objects, "Deployment"))["volumes"]}
    assert mounted["tls"]["secret"]["secretName"] == spec["secretName"]


def test_whoever_makes_the_certificate_agents_trust_who_signed_it(helm: Helm) -> None:
    """The ConfigMap that they mount is the one that the supervisor, the chart or somebody else makes."""
    assert _trusted(helm.render()) == environment(one(helm.render(), "Deployment"))["JOB_SUPERVISOR_CA_CONFIG_MAP"]
    assert one(helm.render(_MANY), "ConfigMap", _trusted(helm.render(_MANY)))
    assert _trusted(helm.render(_OWN_SECRET)) == "authorities"


def test_the_supervisors_own_certificate_has_the_names_that_agents_connect_to(helm: Helm) -> None:
    objects = helm.render({"tls": {"extraNames": ["supervisor.example.com"]}})
    names = environment(one(objects, "Deployment"))["JOB_SUPERVISOR_TLS_NAMES"].split(",")
    agent = environment(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))
    assert {agent["NODE_AGENT_SUPERVISOR"].partition(":")[0], "supervisor.example.com"} <= set(names)


def test_only_the_supervisors_own_certificate_is_for_a_port_forward_too(helm: Helm) -> None:
    """An issuer outside may refuse the name; whoever has one that does not sets `tls.extraNames`."""
    names = environment(one(helm.render(), "Deployment"))["JOB_SUPERVISOR_TLS_NAMES"].split(",")
    assert names.count("localhost") == 1
    assert "localhost" not in one(helm.render(_MANY), "Certificate")["spec"]["dnsNames"]


def test_the_webhooks_ask_for_what_is_opted_in_alone_and_stop_none(helm: Helm) -> None:
    """Elsewhere than in the release's own namespace; its certificate has the Service's name."""
    objects = helm.render(_MANY)
    webhooks = one(objects, "MutatingWebhookConfiguration")["webhooks"]
    for webhook in webhooks:
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Ignore", 2)
        (condition,) = webhook["matchConditions"]
        assert "'job-supervisor.kube-ai.io/'" in condition["expression"]
        [excluded] = webhook["namespaceSelector"]["matchExpressions"]
        assert excluded["values"] == ["kube-system", "monitoring", "arena-system"]
    paths = [webhook["clientConfig"]["service"].pop("path") for webhook in webhooks]
    assert paths == [PATH, CHECK_PATH]
    service = webhooks[0]["clientConfig"]["service"]
    assert service == webhooks[1]["clientConfig"]["service"]
    assert one(objects, "Service", service["name"])["spec"]["ports"][0]["port"] == service["port"]
    assert f"{service['name']}.{service['namespace']}.svc" in one(objects, "Certificate")["spec"]["dnsNames"]


def test_the_webhook_is_the_one_that_its_page_shows(helm: Helm) -> None:
    """But for the namespaces that are left out and for whom to trust, which an installation knows."""
    shown = documented("MutatingWebhookConfiguration")["webhooks"]
    made = one(helm.render(), "MutatingWebhookConfiguration")["webhooks"]
    for rendered, written in zip(made, shown, strict=True):
        del rendered["namespaceSelector"], written["clientConfig"]["caBundle"]
        assert rendered == written


def test_the_webhook_for_jobs_knows_every_kind_that_can_be_checked_alone(helm: Helm) -> None:
    """What would be found in a TrainJob is in its runtime, which the webhook does not see."""
    rules = one(helm.render(), "MutatingWebhookConfiguration")["webhooks"][1]["rules"]
    asked = {(group, plural) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}
    alone = [shape.resource for kind, shape in SHAPES.items() if kind is not CheckedKind.TRAIN_JOB]
    assert asked == {(resource.group, resource.plural) for resource in alone}


def test_the_webhook_is_known_by_whoever_signed_its_certificate(helm: Helm) -> None:
    """The supervisor or cert-manager writes that into the configuration, else the chart does."""
    own = one(helm.render(), "MutatingWebhookConfiguration")
    assert not any("caBundle" in each["clientConfig"] for each in own["webhooks"])
    assert environment(one(helm.render(), "Deployment"))["JOB_SUPERVISOR_WEBHOOK_NAME"] == own["metadata"]["name"]
    managed = one(helm.render(_MANY), "MutatingWebhookConfiguration")
    injected = managed["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"arena-system/{one(helm.render(_MANY), 'Certificate')['metadata']['name']}"
    for given in one(helm.render(_OWN_SECRET), "MutatingWebhookConfiguration")["webhooks"]:
        assert base64.b64decode(given["clientConfig"]["caBundle"]).startswith(b"-----BEGIN CERTIFICATE-----")


def test_pods_are_told_where_the_supervisor_is_and_whom_to_trust(helm: Helm) -> None:
    told = environment(one(helm.render(), "Deployment"))
    assert told["JOB_SUPERVISOR_PUBLIC_ADDRESS"] == "https://elastic-job-supervisor.arena-system.svc:8471"
    assert "elastic-job-supervisor.arena-system.svc" in told["JOB_SUPERVISOR_TLS_NAMES"].split(",")
    assert "JOB_SUPERVISOR_PUBLIC_CA_FILE" not in told
    deployment = one(helm.render(_MANY), "Deployment")
    told = environment(deployment)
    assert told["JOB_SUPERVISOR_PUBLIC_ADDRESS"] == "https://supervisor.example.com:443"
    [container] = pod_of(deployment)["containers"]
    [at] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "ca"]
    assert told["JOB_SUPERVISOR_PUBLIC_CA_FILE"] == f"{at}/ca.crt"


def test_definitions_are_objects_of_the_release_that_outlive_it(helm: Helm) -> None:
    definitions = [each for each in helm.render() if each["kind"] == "CustomResourceDefinition"]
    assert {each["spec"]["names"]["kind"] for each in definitions} == {"ReclaimNotice", "SupervisedJob"}
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in definitions)
    assert not [each for each in helm.render(_FEW) if each["kind"] == "CustomResourceDefinition"]


def test_images_are_named_by_digest_before_tag_before_version(helm: Helm) -> None:
    registry = WITH_REGISTRY["images"]["registry"]
    assert images(helm.render()) == {
        f"{registry}/elastic-job-supervisor:0.1.0",
        f"{registry}/elastic-job-supervisor-agent:0.1.0",
    }
    assert images(helm.render(_MANY)) == {
        "registry.example.com/arena/elastic-job-supervisor:1.2.3",
        f"registry.example.com/arena/elastic-job-supervisor-agent@sha256:{'0' * 64}",
    }


def test_no_object_keeps_a_secret(helm: Helm) -> None:
    """A release lies in the cluster with all its objects, and in the repositories of those who render it."""
    for values in _MATRIX.values():
        objects = helm.render(values)
        assert "Secret" not in {each["kind"] for each in objects}
        assert "PRIVATE KEY" not in json.dumps(objects)


def _name(objects: list[Manifest]) -> str:
    [name] = [each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"]
    return str(name)


def _trusted(objects: list[Manifest]) -> str:
    [volume, *_] = pod_of(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))["volumes"]
    name: str = volume["projected"]["sources"][1]["configMap"]["name"]
    return name


def _selector(each: Manifest) -> dict[str, Any]:
    spec = each.get("spec", {})
    if each["kind"] == "Service":
        return dict(spec["selector"])
    wanted = spec.get("podSelector") or spec.get("selector") or {}
    return dict(wanted.get("matchLabels", {}))
