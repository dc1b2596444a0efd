from typing import Any, cast

import pytest

from supervisor.observability.page.actions import action_endpoints
from supervisor.observability.page.console import Console
from supervisor.observability.page.endpoints import PageEndpoints
from supervisor.observability.page.gate import PageGate
from supervisor.observability.page.rendering import PageRenderer
from tests.chart.chart_rendering import Helm, Manifest, RenderingRefused, Values, one, pod_of

_INGRESS = {"enabled": True, "host": "page.example.com"}
_ROUTE = {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}]}
_NAME = "elastic-job-supervisor-page"


def _rendered(helm: Helm, kind: str, values: Values) -> Manifest:
    return one(helm.render({"statusPage": values}), kind, _NAME)


def test_nothing_leads_to_the_page_from_outside_unless_asked_for(helm: Helm) -> None:
    assert not {"Ingress", "HTTPRoute", "BackendTLSPolicy"} & {each["kind"] for each in helm.render()}


def test_an_ingress_leads_to_the_leader(helm: Helm) -> None:
    given = {**_INGRESS, "className": "nginx", "tlsSecret": "page", "annotations": {"a": "b"}}
    objects = helm.render({"statusPage": {"ingress": given}})
    ingress = one(objects, "Ingress", _NAME)
    assert ingress["metadata"]["annotations"] == {"a": "b"}
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["page.example.com"], "secretName": "page"}]
    [rule] = ingress["spec"]["rules"]
    assert rule["host"] == "page.example.com"
    names = {port["name"] for port in one(objects, "Service")["spec"]["ports"]}
    for path in rule["http"]["paths"]:
        assert path["backend"]["service"]["name"] == "elastic-job-supervisor"
        assert path["backend"]["service"]["port"]["name"] in names


def test_a_route_leads_to_the_leader_over_https(helm: Helm) -> None:
    """The gateway trusts the CA that agents trust, and expects a name that is in the certificate."""
    objects = helm.render({"statusPage": {"httpRoute": {**_ROUTE, "hostnames": ["page.example.com"]}}})
    route, policy = (one(objects, kind, _NAME)["spec"] for kind in ("HTTPRoute", "BackendTLSPolicy"))
    assert (route["parentRefs"], route["hostnames"]) == (_ROUTE["parentRefs"], ["page.example.com"])
    assert route["rules"][0]["backendRefs"] == [{"name": "elastic-job-supervisor", "port": 8471}]
    ports = {each["name"]: each["port"] for each in one(objects, "Service")["spec"]["ports"]}
    assert ports[policy["targetRefs"][0]["sectionName"]] == 8471
    agent = pod_of(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))
    trusted = agent["volumes"][0]["projected"]["sources"][1]["configMap"]["name"]
    assert policy["validation"]["caCertificateRefs"][0]["name"] == trusted
    [names] = [
        each["value"]
        for each in pod_of(one(objects, "Deployment"))["containers"][0]["env"]
        if each["name"] == "JOB_SUPERVISOR_TLS_NAMES"
    ]
    assert policy["validation"]["hostname"] in names.split(",")


def test_a_gateway_without_backend_policies_gets_none(helm: Helm) -> None:
    objects = helm.render({"statusPage": {"httpRoute": {**_ROUTE, "backendTLSPolicy": False}}})
    assert "BackendTLSPolicy" not in {each["kind"] for each in objects}


def test_every_path_of_the_page_can_be_reached_and_none_of_the_apis(helm: Helm) -> None:
    page = _rendered(helm, "Ingress", {"ingress": _INGRESS})["spec"]["rules"][0]["http"]["paths"]
    route = _rendered(helm, "HTTPRoute", {"httpRoute": _ROUTE})["spec"]["rules"][0]["matches"]
    by_ingress = {(each["pathType"], each["path"]) for each in page}
    by_route = {(each["path"]["type"].removeprefix("Path"), each["path"]["value"]) for each in route}
    assert by_ingress == by_route == {("Exact", "/"), ("Prefix", "/status")}
    assert all(path in {"/", "/status"} or path.startswith("/status/") for path in _served())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"statusPage": {"ingress": {"enabled": True}}}, "statusPage.ingress.host must be set"),
        ({"statusPage": {"httpRoute": {"enabled": True}}}, "statusPage.httpRoute.parentRefs must name the Gateway"),
        (
            {"statusPage": {"ingress": _INGRESS}, "supervisor": {"settings": {"statusPage": False}}},
            "require supervisor.settings.statusPage",
        ),
    ],
    ids=["no-host", "no-gateway", "no-page"],
)
def test_a_way_to_nowhere_is_refused(helm: Helm, values: Values, sentence: str) -> None:
    with pytest.raises(RenderingRefused, match=sentence):
        helm.render(values)


def _served() -> set[str]:
    """The paths of the page, none of which is asked."""
    unused = cast("Any", None)
    renderer = PageRenderer()
    gate = PageGate(sessions=unused, renderer=renderer, refusals=unused)
    page = PageEndpoints(
        snapshot=unused,
        job=unused,
        history=unused,
        spent=unused,
        hourly=unused,
        capacity=unused,
        console=Console(snapshot=unused, history=unused, pools=unused, held=unused, renderer=renderer, clock=unused),
        renderer=renderer,
        viewers=unused,
        gate=gate,
        actions=action_endpoints(
            gate=gate,
            steering=unused,
            snapshot=unused,
            audit=unused,
            renderer=renderer,
            refusals=unused,
            clock=unused,
        ),
        comparisons=unused,
        refusals=unused,
        clock=unused,
        bulkhead=unused,
    )
    return {route.path for route in page.routes()}
