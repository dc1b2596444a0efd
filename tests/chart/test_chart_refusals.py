from typing import Any

import pytest

from tests.chart.chart_rendering import CHART, NAMESPACE, RELEASE, Helm, RenderingRefused, Values

_PEM = "-----BEGIN CERTIFICATE-----"
_REFUSED: list[tuple[Values, str]] = [
    (
        {"images": {"registry": ""}},
        "images.registry must name the registry that has the image elastic-job-supervisor, such as",
    ),
    (
        {"images": {"registry": ""}, "supervisor": {"image": {"repository": "registry.example.com/supervisor"}}},
        "images.registry must name the registry that has the image elastic-job-supervisor-agent",
    ),
    ({"supervisr": {}}, "'supervisr' not allowed"),
    ({"supervisor": {"replica": 2}}, "at '/supervisor': additional properties 'replica' not allowed"),
    ({"supervisor": {"replicas": 0}}, "at '/supervisor/replicas': minimum: got 0, want 1"),
    ({"supervisor": {"replicas": "two"}}, "at '/supervisor/replicas': got string, want integer"),
    (
        {"supervisor": {"settings": {"windowSeconds": -1}}},
        "at '/supervisor/settings/windowSeconds': minimum: got -1, want 0",
    ),
    (
        {"supervisor": {"settings": {"windowSeconds": 9999}}},
        "at '/supervisor/settings/windowSeconds': maximum: got 9,999, want 60",
    ),
    (
        {"supervisor": {"settings": {"windowSecond": 1}}},
        "at '/supervisor/settings': additional properties 'windowSecond' not allowed",
    ),
    (
        {"supervisor": {"settings": {"leaseSeconds": 1.5}}},
        "at '/supervisor/settings/leaseSeconds': got number, want integer",
    ),
    (
        {"supervisor": {"settings": {"kinds": ["pytorch"]}}},
        "at '/supervisor/settings/kinds/0': value must be one of 'trainingjob', 'mpijob', 'pytorchjob', ",
    ),
    ({"supervisor": {"settings": {"kinds": "pytorchjob"}}}, "at '/supervisor/settings/kinds': got string, want array"),
    ({"supervisor": {"settings": {"store": "sqlite"}}}, "additional properties 'store' not allowed"),
    (
        {"supervisor": {"resources": {"limit": {}}}},
        "at '/supervisor/resources': additional properties 'limit' not allowed",
    ),
    ({"supervisor": {"image": {"digest": "sha256:1"}}}, "at '/supervisor/image/digest'"),
    ({"agent": {"settings": {"pollSeconds": 5}}}, "at '/agent/settings/pollSeconds': maximum: got 5, want 1"),
    ({"agent": {"settings": {"pods": False}}}, "at '/agent/settings/pods'"),
    ({"agent": {"sources": ["gcs"]}}, "at '/agent/sources/0'"),
    ({"agent": {"sources": []}}, "at '/agent/sources'"),
    ({"agent": {"probePort": 70000}}, "at '/agent/probePort': maximum: got 70,000, want 65,535"),
    ({"agent": {"maxUnavailable": "0%"}}, "at '/agent/maxUnavailable'"),
    ({"networkPolicy": {"nodeCIDRs": ["10.0.0.1"]}}, "at '/networkPolicy/nodeCIDRs/0'"),
    ({"tracing": {"endpoint": "collector:4317"}}, "at '/tracing/endpoint'"),
    ({"fullnameOverride": "Über"}, "at '/fullnameOverride'"),
    ({"tls": {"mode": "none"}}, "at '/tls/mode'"),
    ({"tls": {"caBundle": "no PEM"}}, "at '/tls/caBundle'"),
    ({"tls": {"caBundle": _PEM}}, "tls.caBundle is for tls.mode certManager or existingSecret"),
    ({"tls": {"mode": "existingSecret"}}, "tls.existingSecret must name the Secret"),
    ({"tls": {"mode": "certManager"}}, "tls.certManager.issuerRef.name must name the issuer"),
    ({"tls": {"mode": "existingSecret", "existingSecret": "a"}}, "tls.caBundle or tls.caConfigMap must contain the CA"),
    (
        {"tls": {"mode": "existingSecret", "existingSecret": "a", "caConfigMap": "b", "caBundle": _PEM}},
        "tls.caBundle and tls.caConfigMap exclude each other",
    ),
    (
        {"tls": {"mode": "existingSecret", "existingSecret": "a", "caConfigMap": "b"}},
        "webhook.caBundle or tls.caBundle must contain the CA with which the API server verifies the webhook",
    ),
    ({"metrics": {"scrapers": []}}, "at '/metrics/scrapers'"),
    ({"metrics": {"serviceMonitor": {"interval": 15}}}, "at '/metrics/serviceMonitor/interval'"),
    ({"metrics": {"rules": {"runbookUrl": "docs/"}}}, "at '/metrics/rules/runbookUrl'"),
    ({"metrics": {"serviceMonitor": {"enabled": True}}}, "metrics.serviceMonitor.enabled requires metrics.enabled"),
    ({"metrics": {"rules": {"enabled": True}}}, "metrics.rules.enabled requires metrics.enabled"),
    ({"metrics": {"podMonitor": {"enabled": True}}}, "metrics.podMonitor.enabled requires metrics.enabled"),
    ({"metrics": {"enabled": True}, "agent": {"probePort": 8475}}, "agent.probePort must not be 8475"),
    ({"notifications": {"targets": [{"name": "a"}]}}, "at '/notifications/targets/0'"),
    ({"prices": {"machines": [{"type": "a", "spot": -1}], "as_of": "2026-11-01", "currency": "EUR"}}, "at '/prices"),
    ({"prices": {"machines": [{"type": "a", "spot": 1}]}}, "at '/prices"),
    *(
        ({"prices": {"machines": [{"type": "a"}], "as_of": day, "currency": "EUR"}}, "at '/prices/as_of'")
        for day in ("2026-13-45", "2026-02-30", "2026-04-31", "2026-00-10", "2026-10-00")
    ),
    ({"prices": {"machines": [{"type": "a"}], "as_of": "2026-11-01", "currency": "E" * 21}}, "at '/prices/currency'"),
    (
        {"notifications": {"targets": [{"name": "a", "urlSecret": {"name": "b"}, "url": "https://secret"}]}},
        "at '/notifications/targets/0': additional properties 'url' not allowed",
    ),
    ({"notifications": {"targets": [{"name": "a", "urlSecret": {"name": "b"}}] * 2}}, "two targets have the same name"),
    ({"supervisor": {"publicAddress": "http://a:1"}}, "at '/supervisor/publicAddress'"),
    ({"supervisor": {"publicAddress": "https://a.example:1"}}, "supervisor.publicAddress names a.example, which"),
    ({"supervisor": {"publicAddress": "https://[fd00::2]:1"}}, "supervisor.publicAddress names fd00::2, which"),
    ({"webhook": {"failurePolicy": "Fail"}}, "at '/webhook': additional properties 'failurePolicy' not allowed"),
]


@pytest.mark.parametrize(("values", "sentence"), _REFUSED, ids=[sentence[:60] for _, sentence in _REFUSED])
def test_nonsense_is_refused_with_the_key_that_is_wrong(helm: Helm, values: Any, sentence: str) -> None:
    with pytest.raises(RenderingRefused) as refused:
        helm.render(values)
    assert sentence in str(refused.value)


def test_an_old_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(RenderingRefused, match=r"requires kubeVersion: >=1\.30\.0-0"):
        helm.render(version="1.29.9")


def test_the_chart_passes_helms_own_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def test_a_chart_that_has_this_one_as_a_part_may_have_globals(helm: Helm) -> None:
    assert helm.render({"global": {"anything": 1}})


def test_the_same_values_make_the_same_objects(helm: Helm) -> None:
    """Nothing is drawn by chance and no cluster is asked, so that tools that render by themselves see no change."""
    command = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--set", "images.registry=localhost"]
    assert helm.run(*command) == helm.run(*command)
    assert {each["metadata"].get("namespace", NAMESPACE) for each in helm.render()} == {NAMESPACE}
