import json
from typing import Any

import pytest

from tests.chart.chart_rendering import Helm, Manifest, Values, environment, one, pod_of

_SUPERVISOR, _AGENT = "elastic-job-supervisor", "elastic-job-supervisor-agent"
_WORKLOADS = {"supervisor": ("Deployment", _SUPERVISOR), "agent": ("DaemonSet", _AGENT)}
_OPENSHIFT = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}

both = pytest.mark.parametrize("component", _WORKLOADS)


def _pod(helm: Helm, component: str, values: Values) -> Manifest:
    return pod_of(one(helm.render({component: values}), *_WORKLOADS[component]))


def _container(helm: Helm, component: str, values: Values) -> Manifest:
    container: Manifest = _pod(helm, component, values)["containers"][0]
    return container


@both
def test_a_service_account_has_the_name_and_annotations_that_are_given(helm: Helm, component: str) -> None:
    """The roles are bound to it, and the supervisor believes the agents that have it."""
    account = {"name": "ours", "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}}
    objects = helm.render({component: {"serviceAccount": account}})
    assert one(objects, "ServiceAccount", "ours")["metadata"]["annotations"] == account["annotations"]
    assert _accounts(objects, component) == {"ours"}
    assert _believed(objects) == f"arena-system/{'ours' if component == 'agent' else _AGENT}"


@both
def test_an_existing_service_account_is_used_and_not_made(helm: Helm, component: str) -> None:
    for given, name in (({"create": False, "name": "theirs"}, "theirs"), ({"create": False}, "default")):
        objects = helm.render({component: {"serviceAccount": given}})
        assert name not in {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
        assert _accounts(objects, component) == {name}


def test_common_labels_and_annotations_are_on_every_object_and_labels_on_every_pod(helm: Helm) -> None:
    """The chart's own labels win, as Services and tools select by them."""
    labels = {"team": "ml", "app.kubernetes.io/name": "wrong"}
    values = {
        "commonLabels": labels,
        "commonAnnotations": {"owner": "us"},
        "metrics": {"enabled": True, **{each: {"enabled": True} for each in ("serviceMonitor", "podMonitor", "rules")}},
        "statusPage": {
            "ingress": {"enabled": True, "host": "a.example"},
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
        },
    }
    objects = [each for each in helm.render(values) if each["kind"] != "CustomResourceDefinition"]
    assert len(objects) > 20
    for each in objects:
        assert each["metadata"]["annotations"]["owner"] == "us"
        pods = [each["spec"]["template"]["metadata"]] if each["kind"] in {"Deployment", "DaemonSet"} else []
        for metadata in (each["metadata"], *pods):
            assert metadata["labels"]["team"] == "ml"
            assert metadata["labels"]["app.kubernetes.io/name"] == "elastic-job-supervisor"


def test_the_name_label_can_be_chosen(helm: Helm) -> None:
    objects = helm.render({"nameOverride": "spot"})
    for each in (one(objects, *workload) for workload in _WORKLOADS.values()):
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "spot"
        assert each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "spot"
        assert each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "spot"
    assert one(objects, "Service")["spec"]["selector"]["app.kubernetes.io/name"] == "spot"


@both
def test_a_container_gets_additional_variables_volumes_and_neighbours(helm: Helm, component: str) -> None:
    given: dict[str, Any] = {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "extraVolumes": [{"name": "cache", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        "extraContainers": [{"name": "neighbour", "image": "proxy:1"}],
    }
    pod = _pod(helm, component, given)
    container, *others = pod["containers"]
    assert given["extraEnv"][0] in container["env"]
    assert container["envFrom"] == given["envFrom"]
    assert given["extraVolumes"][0] in pod["volumes"]
    assert given["extraVolumeMounts"][0] in container["volumeMounts"]
    assert others == given["extraContainers"]


@both
def test_a_platform_may_choose_the_user_ids(helm: Helm, component: str) -> None:
    """OpenShift refuses fixed ones; everything else of the level `restricted` stays."""
    pod = _pod(helm, component, _OPENSHIFT)
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    changed = _container(helm, component, {"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}})
    assert changed["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    assert changed["securityContext"]["readOnlyRootFilesystem"] is True


@both
def test_probes_have_the_timing_that_is_given_and_can_be_left_out(helm: Helm, component: str) -> None:
    given = {"startupProbe": {"failureThreshold": 7}, "livenessProbe": None, "readinessProbe": {"periodSeconds": 3}}
    container = _container(helm, component, given)
    assert container["startupProbe"]["failureThreshold"] == 7
    assert container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["periodSeconds"] == 3
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "livenessProbe" not in container


@both
def test_a_start_may_take_longer_than_the_liveness_probe_allows(helm: Helm, component: str) -> None:
    startup, liveness = (_container(helm, component, {})[name] for name in ("startupProbe", "livenessProbe"))
    assert startup["periodSeconds"] * startup["failureThreshold"] > (
        liveness["periodSeconds"] * liveness["failureThreshold"]
    )


@both
def test_a_workload_has_the_usual_knobs(helm: Helm, component: str) -> None:
    given = {"terminationGracePeriodSeconds": 45, "revisionHistoryLimit": 3, "dnsPolicy": "Default"}
    workload = one(helm.render({component: given}), *_WORKLOADS[component])
    assert workload["spec"]["revisionHistoryLimit"] == 3
    assert pod_of(workload)["terminationGracePeriodSeconds"] == 45
    assert pod_of(workload)["dnsPolicy"] == "Default"


def test_updates_follow_the_strategy_that_is_given(helm: Helm) -> None:
    recreate = {"supervisor": {"strategy": {"type": "Recreate", "rollingUpdate": None}}}
    assert one(helm.render(recreate), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    waiting = helm.render({"agent": {"updateStrategy": "OnDelete"}})
    assert one(waiting, "DaemonSet", _AGENT)["spec"]["updateStrategy"] == {"type": "OnDelete"}
    usual = one(helm.render(), "DaemonSet", _AGENT)["spec"]["updateStrategy"]
    assert usual == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}


def test_replicas_are_spread_by_additional_constraints_too(helm: Helm) -> None:
    rack = {
        "topologyKey": "rack",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "supervisor"}},
    }
    usual, added = _pod(helm, "supervisor", {"topologySpreadConstraints": [rack]})["topologySpreadConstraints"]
    assert (usual["topologyKey"], added) == ("kubernetes.io/hostname", rack)


def test_additional_manifests_are_rendered_with_the_release(helm: Helm) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-more'}"
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}}
    objects = helm.render({"extraManifests": [text, plain]})
    assert one(objects, "ConfigMap", "elastic-job-supervisor-more")
    assert one(objects, "ConfigMap", "plain") == plain


def test_users_of_the_cluster_may_read_what_is_stored_and_write_none_of_it(helm: Helm) -> None:
    role = one(helm.render(), "ClusterRole", "elastic-job-supervisor-view")
    aggregated = {name for name, value in role["metadata"]["labels"].items() if value == "true"}
    assert aggregated == {f"rbac.authorization.k8s.io/aggregate-to-{each}" for each in ("view", "edit", "admin")}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    without = helm.render({"rbac": {"aggregateToUserRoles": False}})
    assert "aggregate-to" not in json.dumps(without)


def _accounts(objects: list[Manifest], component: str) -> set[str]:
    """The accounts of the pods of a component and of everybody to whom its roles are bound."""
    kind, name = _WORKLOADS[component]
    bindings = [each for each in objects if each["kind"].endswith("Binding") and each["metadata"]["name"] == name]
    bound = {subject["name"] for each in bindings for subject in each["subjects"]}
    return {pod_of(one(objects, kind, name))["serviceAccountName"], *bound}


def _believed(objects: list[Manifest]) -> str:
    return environment(one(objects, "Deployment"))["JOB_SUPERVISOR_AGENT_ACCOUNT"]
