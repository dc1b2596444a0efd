import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from charts.settings_schema import (
    AGENT_OWNED,
    SUPERVISOR_OWNED,
    Schema,
    agent_settings,
    supervisor_settings,
)
from node_agent.settings import AgentSettings, SourceKind
from servicekit import settings
from supervisor.settings import PREFIX
from supervisor.settings import Settings as SupervisorSettings
from tests.chart.chart_rendering import CHART, Helm, environment, one, pod_of

_SPOKEN: dict[str, Any] = {
    "publicAddress": "https://supervisor:8471",
    "webhookAddress": "0.0.0.0:8472",
    "notificationsProxy": "http://proxy:3128",
    "failpoint": "",
    "filePath": "/run/reclaim",
    "metadataUrl": "http://localhost",
    "awsMetadataUrl": "http://localhost",
    "azureMetadataUrl": "http://localhost",
    "gcpMetadataUrl": "http://localhost",
    "tencentMetadataUrl": "http://localhost",
    "volcengineMetadataUrl": "http://localhost",
    "docsUrl": "https://docs.example.com/",
    "grafanaUrl": "https://grafana.example.com/",
    "namespaces": ["team-a", "team-b"],
}
_OWN_CERTIFICATE = {
    "mode": "existingSecret",
    "existingSecret": "certificate",
    "caBundle": "-----BEGIN CERTIFICATE-----",
}
_SERVICES: Mapping[str, tuple[type[Any], str, str, str, frozenset[str]]] = {
    "supervisor": (SupervisorSettings, "JOB_SUPERVISOR", "Deployment", "elastic-job-supervisor", SUPERVISOR_OWNED),
    "agent": (AgentSettings, "NODE_AGENT", "DaemonSet", "elastic-job-supervisor-agent", AGENT_OWNED),
}
_RENDERINGS: list[Mapping[str, Any]] = [
    {},
    {"tls": _OWN_CERTIFICATE},
    {"metrics": {"enabled": True}},
    {"notifications": {"targets": [{"name": "team", "urlSecret": {"name": "slack"}}]}},
    {"prices": {"as_of": "2026-11-01", "currency": "EUR", "machines": [{"type": "big", "spot": 1.5}]}},
    {"record": {"urlSecret": {"name": "record"}}},
    {"tracing": {"endpoint": "http://collector:4317"}},
    {"keeper": {"enabled": True}},
]


def _environment(helm: Helm, service: str, values: Mapping[str, Any]) -> dict[str, str]:
    _, _, kind, name, _ = _SERVICES[service]
    return environment(one(helm.render({service: {"settings": values}}), kind, name))


@pytest.mark.parametrize(
    "values",
    _RENDERINGS,
    ids=["self", "own-certificate", "metrics", "notifications", "prices", "record", "traces", "keeper"],
)
@pytest.mark.parametrize("service", _SERVICES)
def test_a_service_starts_with_what_the_chart_sets(helm: Helm, service: str, values: Mapping[str, Any]) -> None:
    cls, prefix, kind, name, _ = _SERVICES[service]
    assert settings.load(cls, prefix, environment(one(helm.render(values), kind, name)))


@pytest.mark.parametrize("service", _SERVICES)
def test_the_settings_that_are_the_charts_own_are_set_by_it(helm: Helm, service: str) -> None:
    """Each by some value; but for the election, without which the Service would find nobody."""
    _, prefix, kind, name, owned = _SERVICES[service]
    renderings = [helm.render(values) for values in _RENDERINGS]
    variables = {variable for objects in renderings for variable in environment(one(objects, kind, name))}
    said = {variable.removeprefix(f"{prefix}_").lower() for variable in variables if variable.startswith(prefix)}
    assert said - {"log_format"} == owned - {"leader_election"}


@pytest.mark.parametrize(
    ("service", "schema"),
    [("supervisor", supervisor_settings()), ("agent", agent_settings())],
    ids=["supervisor", "agent"],
)
def test_every_setting_reaches_its_service(helm: Helm, service: str, schema: Schema) -> None:
    cls, prefix, *_ = _SERVICES[service]
    values = {name: _sample(name, each) for name, each in schema["properties"].items()}
    loaded = settings.load(cls, prefix, _environment(helm, service, values))
    for name, value in values.items():
        field = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        arrived = getattr(loaded, field)
        expected = tuple(value) if isinstance(value, list) else value
        assert str(arrived) == expected if isinstance(value, str) else arrived == expected, name


def _sample(name: str, schema: Schema) -> Any:
    """A value that is not the default, where one can be made up."""
    if name in _SPOKEN:
        return _SPOKEN[name]
    if "enum" in schema:
        return schema["enum"][0]
    items = schema.get("items", {})
    made_up = {
        "boolean": False,
        "integer": schema.get("maximum", 7),
        "number": schema.get("maximum", 123456.5),
        "array": items.get("enum") or (["a=b", "c=d"] if "pattern" in items else ["SpotToBeReleased:7", "Other"]),
        "string": "some-text",
    }
    return made_up[schema["type"]]


def test_large_numbers_are_no_powers_of_ten(helm: Helm) -> None:
    """A template would write a million as 1e+06, which is no integer to a service."""
    said = _environment(helm, "supervisor", {"launcherHosts": 1_000_000})
    assert said[f"{PREFIX}LAUNCHER_HOSTS"] == "1000000"


def test_the_chart_knows_every_source() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    sources = schema["properties"]["agent"]["properties"]["sources"]
    assert sources["items"]["enum"] == [kind.value for kind in SourceKind]


def test_the_record_is_in_the_database_that_a_secret_names(helm: Helm) -> None:
    """Without one, it is a file in the pod."""
    assert "JOB_SUPERVISOR_RECORD_URL_FILE" not in environment(one(helm.render(), "Deployment"))
    deployment = one(helm.render({"record": {"urlSecret": {"name": "our-record"}}}), "Deployment")
    path = Path(environment(deployment)["JOB_SUPERVISOR_RECORD_URL_FILE"])
    pod = pod_of(deployment)
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "record"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "record"]
    assert Path(mount["mountPath"]) == path.parent
    assert volume["secret"]["secretName"] == "our-record"
    assert volume["secret"]["items"] == [{"key": "url", "path": path.name}]
    assert volume["secret"]["optional"] is True


def test_the_collector_of_traces_is_named_for_its_library(helm: Helm) -> None:
    """Without one, there are no traces."""
    off = environment(one(helm.render(), "Deployment"))
    assert not off.keys() & {"OTEL_EXPORTER_OTLP_ENDPOINT", f"{PREFIX}TRACES"}
    said = environment(one(helm.render({"tracing": {"endpoint": "https://collector.example.com:4317"}}), "Deployment"))
    assert settings.load(SupervisorSettings, PREFIX, said).traces is True
    assert said["OTEL_EXPORTER_OTLP_ENDPOINT"] == "https://collector.example.com:4317"
