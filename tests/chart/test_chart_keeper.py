"""State keepers, which the chart has as an option."""

from typing import Any

import pytest

from charts.settings_schema import KEEPER_OWNED, keeper_settings
from node_agent.keeper.settings import PREFIX, KeeperSettings, load
from tests.chart.chart_rendering import Helm, Manifest, RenderingRefused, environment, one, pod_of
from tests.testkit.controlplane.installed import KEEPER_RULES

_NAME = "elastic-job-supervisor-keeper"
_GIB = 2**30
_SAMPLES = {"apiTimeoutSeconds": 2.5, "authentication": "none", "logFormat": "console", "logLevel": "debug"}


def rendered(helm: Helm, values: dict[str, Any] | None = None, **keeper: Any) -> list[Manifest]:
    return helm.render({"keeper": {"enabled": True, **keeper}, **(values or {})})


def started(objects: list[Manifest]) -> KeeperSettings:
    return load(environment(one(objects, "DaemonSet", _NAME)))


def container(objects: list[Manifest]) -> Manifest:
    found: Manifest = pod_of(one(objects, "DaemonSet", _NAME))["containers"][0]
    return found


def test_nothing_of_it_is_there_unless_somebody_asks_for_it(helm: Helm) -> None:
    """Pods then learn of no keeper either."""
    objects = helm.render()
    assert _NAME not in {each["metadata"]["name"] for each in objects}
    assert "JOB_SUPERVISOR_KEEPER_PORT" not in environment(one(objects, "Deployment"))


def test_it_starts_with_what_the_chart_sets(helm: Helm) -> None:
    objects = rendered(
        helm,
        {"metrics": {"enabled": True}, "supervisor": {"settings": {"tokenAudience": "ours"}}},
        bytes="3Gi",
        tenantBytes="512Mi",
        seconds=86400,
        port=9000,
    )
    settings = started(objects)
    assert (settings.bytes, settings.tenant_bytes, settings.seconds) == (3 * _GIB, _GIB // 2, 86400.0)
    assert (settings.address, settings.audience) == ("0.0.0.0:9000", "ours")
    given = environment(one(objects, "DaemonSet", _NAME))
    assert {name.removeprefix(PREFIX + "_").lower() for name in given} == KEEPER_OWNED
    assert environment(one(objects, "Deployment"))["JOB_SUPERVISOR_KEEPER_PORT"] == "9000"


def test_without_a_bound_for_tenants_each_may_have_all(helm: Helm) -> None:
    assert started(rendered(helm)).tenant_bytes == 0


@pytest.mark.parametrize("name", sorted(keeper_settings()["properties"]))
def test_every_setting_reaches_it(helm: Helm, name: str) -> None:
    value = _SAMPLES.get(name, "some-text")
    field = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    assert str(getattr(started(rendered(helm, settings={name: value})), field)) == str(value)


def test_states_lie_in_memory_that_the_container_may_have(helm: Helm) -> None:
    """The pages of a tmpfs count against the container's limit."""
    objects = rendered(helm, bytes="3Gi", overhead="128Mi")
    pod, keeper, settings = pod_of(one(objects, "DaemonSet", _NAME)), container(objects), started(objects)
    [volume] = pod["volumes"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": str(3 * _GIB)}
    [mount] = keeper["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert str(settings.directory.parent) == mount["mountPath"]
    assert keeper["resources"]["limits"]["memory"] == str(3 * _GIB + 128 * 2**20)
    chosen = {"requests": {"memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Mi"}}
    given = container(rendered(helm, bytes="3Gi", overhead="1Gi", resources=chosen))["resources"]
    assert given["limits"] == {"cpu": "1", "memory": str(4 * _GIB)}
    assert given["requests"]["memory"] == "1Gi"


def test_an_upgrade_restarts_no_keeper(helm: Helm) -> None:
    """A new pod begins without the states of the old one."""
    assert one(rendered(helm), "DaemonSet", _NAME)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_but_for_its_port_on_the_node_it_is_restricted(helm: Helm) -> None:
    objects = rendered(helm)
    pod, keeper = pod_of(one(objects, "DaemonSet", _NAME)), container(objects)
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert keeper["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [port["hostPort"] for port in keeper["ports"] if "hostPort" in port] == [8476]


def test_it_is_placed_by_its_own_values_and_made_of_the_agents_image(helm: Helm) -> None:
    agent = {"nodeSelector": {"pool": "spot"}, "extraEnv": [{"name": "A", "value": "b"}], "priorityClassName": "ours"}
    objects = rendered(helm, {"agent": agent}, nodeSelector={"pool": "steady"}, tolerations=[])
    pod = pod_of(one(objects, "DaemonSet", _NAME))
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "steady"}
    assert "tolerations" not in pod
    assert pod["priorityClassName"] == "ours"
    theirs = pod_of(one(objects, "DaemonSet", "elastic-job-supervisor-agent"))["containers"][0]
    assert container(objects)["image"] == theirs["image"]


def test_it_may_have_tokens_reviewed_and_nothing_else(helm: Helm) -> None:
    objects = rendered(helm)
    assert one(objects, "ClusterRole", _NAME)["rules"] == list(KEEPER_RULES)
    bound = [each for each in objects for subject in each.get("subjects", []) if subject["name"] == _NAME]
    assert [(each["kind"], each["roleRef"]["name"]) for each in bound] == [("ClusterRoleBinding", _NAME)]


def test_only_its_ports_can_be_reached(helm: Helm) -> None:
    objects = rendered(helm, {"metrics": {"enabled": True}})
    policy = one(objects, "NetworkPolicy", _NAME)["spec"]
    selected = one(objects, "DaemonSet", _NAME)["spec"]["selector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"] == selected
    names = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert names == {port["name"] for port in container(objects)["ports"]} == {"states", "probes", "metrics"}
    without = rendered(helm, {"networkPolicy": {"enabled": False}})
    assert _NAME not in {each["metadata"]["name"] for each in without if each["kind"] == "NetworkPolicy"}


def test_prometheus_finds_it(helm: Helm) -> None:
    objects = rendered(helm, {"metrics": {"enabled": True, "podMonitor": {"enabled": True}}})
    monitor = one(objects, "PodMonitor", _NAME)["spec"]
    assert monitor["selector"]["matchLabels"] == one(objects, "DaemonSet", _NAME)["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bytes": "64GB"}, "bytes"),
        ({"bytes": "0"}, "bytes"),
        ({"seconds": 0}, "seconds"),
        ({"port": 8475}, "keeper.port"),
        ({"settings": {"bytes": 1}}, "bytes"),
    ],
)
def test_wrong_values_are_refused(helm: Helm, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RenderingRefused) as refused:
        rendered(helm, **values)
    assert message in str(refused.value)
