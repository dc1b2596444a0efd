import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # Its stubs would be one more package.
import pytest

from charts.dashboards import dashboards
from tests.chart.chart_definitions import DefinitionsUnavailable, definitions
from tests.chart.chart_rendering import CHART, NAMESPACE, Helm, Manifest, Values, environment, one, pod_of
from tests.testkit.yaml_text import document, documents

_AGENT = "elastic-job-supervisor-agent"
_METRICS = "elastic-job-supervisor-metrics"
_EVERYTHING: Values = {
    "metrics": {
        "enabled": True,
        "scrapers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "prometheus"}},
        "rules": {"enabled": True, "labels": {"release": "prometheus"}, "runbookUrl": "https://git.example.com/main/"},
        "dashboards": {
            "enabled": True,
            "namespace": "grafana",
            "labels": {"grafana_dashboard": "yes"},
            "annotations": {"folder": "Training"},
        },
    }
}


@pytest.fixture(scope="session", name="known")
def _known() -> Mapping[str, Any]:
    """What the operator of Prometheus defines; skipped where that cannot be had."""
    try:
        return definitions()
    except DefinitionsUnavailable as reason:
        pytest.skip(str(reason))


def test_what_the_operator_of_prometheus_is_told_is_valid(helm: Helm, known: Mapping[str, Any]) -> None:
    objects = [each for each in helm.render(_EVERYTHING) if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert {each["kind"] for each in objects} == set(known)
    for each in objects:
        jsonschema.Draft7Validator(known[each["kind"]]).validate(each)
        assert each["metadata"]["labels"]["release"] == "prometheus"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(known[each["kind"]]).validate({**each, "spec": {**each["spec"], "other": 1}})


def test_nothing_is_served_or_monitored_unless_asked_for(helm: Helm) -> None:
    objects = helm.render()
    assert not [each for each in objects if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert not [each for each in objects if "dashboard" in each["metadata"]["name"]]
    for kind, name in (("Deployment", "elastic-job-supervisor"), ("DaemonSet", _AGENT)):
        workload = one(objects, kind, name)
        assert not [each for each in environment(workload) if "METRICS" in each]
        assert "metrics" not in json.dumps(pod_of(workload))


def test_prometheus_finds_every_supervisor_and_every_agent(helm: Helm) -> None:
    """Replicas that stand by as well, by a Service that selects them and a monitor that selects that alone."""
    objects = helm.render(_EVERYTHING)
    service, monitor = one(objects, "Service", _METRICS), one(objects, "ServiceMonitor")
    assert "job-supervisor.kube-ai.io/leader" not in service["spec"]["selector"]
    assert service["spec"]["selector"].items() <= _labels(objects, "Deployment", "elastic-job-supervisor").items()
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each for each in objects if each["kind"] == "Service"]
    assert [each for each in services if wanted <= each["metadata"]["labels"].items()] == [service]
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["spec"]["endpoints"][0]["interval"] == "10s"
    agents = one(objects, "PodMonitor", _AGENT)["spec"]
    assert agents["selector"]["matchLabels"].items() <= _labels(objects, "DaemonSet", _AGENT).items()
    assert agents["podMetricsEndpoints"][0]["interval"] == "1m"


def test_what_is_scraped_is_where_it_is_served(helm: Helm) -> None:
    """The port of the setting is the container's of that name; the policy lets scrapers in, and at no other port."""
    objects = helm.render(_EVERYTHING)
    for kind, name, variable in (
        ("Deployment", "elastic-job-supervisor", "JOB_SUPERVISOR_METRICS_ADDRESS"),
        ("DaemonSet", _AGENT, "NODE_AGENT_METRICS_ADDRESS"),
    ):
        workload = one(objects, kind, name)
        [container] = pod_of(workload)["containers"]
        [port] = [each["containerPort"] for each in container["ports"] if each["name"] == "metrics"]
        assert environment(workload)[variable] == f"0.0.0.0:{port}"
    rules = one(objects, "NetworkPolicy")["spec"]["ingress"]
    [rule] = [each for each in rules if {"port": "metrics"} in each["ports"]]
    assert rule == {"ports": [{"port": "metrics"}], "from": _EVERYTHING["metrics"]["scrapers"]}


def test_the_rules_are_those_of_the_files_with_runbooks_where_they_can_be_read(helm: Helm) -> None:
    plain = _rules([document(path.read_text("utf-8")) for path in (CHART / "files" / "rules").glob("*.yaml")])
    given = _rules([one(helm.render(_EVERYTHING), "PrometheusRule")["spec"]])
    assert given.keys() == plain.keys()
    for name, rule in plain.items():
        if "annotations" in rule:
            rule["annotations"]["runbook_url"] = f"https://git.example.com/main/docs/runbooks/{name}.md"
    assert given == plain


def test_a_path_that_leads_nowhere_is_not_called_a_link(helm: Helm) -> None:
    """Without a place where runbooks can be read, an alert names the page of this repository."""
    values = {"metrics": {**_EVERYTHING["metrics"], "rules": {"enabled": True}}}
    rules = _rules([one(helm.render(values), "PrometheusRule")["spec"]])
    annotated = {name: rule["annotations"] for name, rule in rules.items() if "annotations" in rule}
    assert annotated
    for name, annotations in annotated.items():
        assert annotations["runbook"] == f"docs/runbooks/{name}.md"
        assert "runbook_url" not in annotations


def test_one_url_of_the_pages_serves_alerts_and_dashboards(helm: Helm) -> None:
    """That of the status page, unless alerts have their own."""
    pages = {"supervisor": {"settings": {"docsUrl": "https://docs.example.com/"}}}
    objects = helm.render({"metrics": {"enabled": True, "rules": {"enabled": True}}, **pages})
    rules = _rules([one(objects, "PrometheusRule")["spec"]])
    linked = [rule["annotations"]["runbook_url"] for rule in rules.values() if "annotations" in rule]
    assert linked
    assert all(url.startswith("https://docs.example.com/docs/runbooks/") for url in linked)
    for each in _dashboards(objects):
        for text in each["data"].values():
            [docs] = [each for each in json.loads(text)["templating"]["list"] if each["name"] == "docs"]
            assert docs["query"] == "https://docs.example.com/"


def test_one_switch_makes_what_the_cluster_can_take(helm: Helm) -> None:
    """Without the CRDs of the Prometheus Operator, dashboards only; each part can be left out."""
    plain = {each["kind"] for each in helm.render({"metrics": {"enabled": True}})}
    assert not {"ServiceMonitor", "PodMonitor", "PrometheusRule"} & plain
    assert _dashboards(helm.render({"metrics": {"enabled": True}}))
    assert not _dashboards(helm.render({"metrics": {"enabled": True, "dashboards": {"enabled": False}}}))
    command = [
        "template",
        "elastic-job-supervisor",
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--set",
        "metrics.enabled=true,images.registry=localhost",
    ]
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        text = helm.run(*command, "--api-versions", f"monitoring.coreos.com/v1/{kind}")
        made = {each["kind"] for each in documents(text)}
        assert {"ServiceMonitor", "PodMonitor", "PrometheusRule"} & made == {kind}


def test_dashboards_are_where_and_as_a_sidecar_looks_for_them(helm: Helm) -> None:
    """Each as it is imported by hand; without other values in the release's namespace, under the usual label."""
    maps = _dashboards(helm.render(_EVERYTHING))
    place = '"query": "https://git.example.com/main/",'
    assert {
        name.removeprefix("elastic-job-supervisor-"): text.replace(place, '"query": "",')
        for each in maps
        for name, text in each["data"].items()
    } == dashboards()
    for each in maps:
        assert each["metadata"]["namespace"] == "grafana"
        assert each["metadata"]["labels"]["grafana_dashboard"] == "yes"
        assert each["metadata"]["annotations"] == {"folder": "Training"}
    for each in _dashboards(helm.render({"metrics": {"dashboards": {"enabled": True}}})):
        assert each["metadata"]["namespace"] == NAMESPACE
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"


def _labels(objects: Sequence[Manifest], kind: str, name: str) -> dict[str, str]:
    labels: dict[str, str] = one(objects, kind, name)["spec"]["template"]["metadata"]["labels"]
    return labels


def _rules(files: Sequence[Any]) -> dict[str, Any]:
    groups = [group for each in files for group in each["groups"]]
    return {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}


def _dashboards(objects: Sequence[Manifest]) -> list[Manifest]:
    return [each for each in objects if each["kind"] == "ConfigMap" and "-dashboard-" in each["metadata"]["name"]]
