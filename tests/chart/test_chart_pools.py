import pytest

from tests.chart.chart_rendering import Helm, Manifest, RenderingRefused, Values, environment, one, pod_of

_AGENT = "elastic-job-supervisor-agent"
_POOLS: Values = {
    "agent": {
        "settings": {"logLevel": "debug"},
        "pools": {
            "cloud": {"nodeSelector": {"where": "cloud"}, "sources": ["aws"]},
            "metal": {
                "nodeSelector": {"where": "metal"},
                "hostNetwork": False,
                "tolerations": [],
                "priorityClassName": "",
                "sources": ["file"],
                "resources": {"limits": {"memory": "256Mi"}},
                "settings": {"filePath": "/run/reclaim", "nodeUid": "metal"},
                "extraEnv": [{"name": "A", "value": "b"}],
            },
        },
    }
}


def _pools(objects: list[Manifest]) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == "DaemonSet"}


def test_each_pool_is_a_daemonset_with_the_usual_values_and_its_own(helm: Helm) -> None:
    pools = _pools(helm.render(_POOLS))
    assert pools.keys() == {f"{_AGENT}-cloud", f"{_AGENT}-metal"}
    cloud, metal = (pods for pods in (pod_of(pools[f"{_AGENT}-{name}"]) for name in ("cloud", "metal")))
    assert cloud["nodeSelector"] == {"kubernetes.io/os": "linux", "where": "cloud"}
    assert (cloud["hostNetwork"], cloud["priorityClassName"]) == (True, "system-node-critical")
    assert not {"hostNetwork", "tolerations", "priorityClassName"} & metal.keys()
    assert metal["containers"][0]["resources"]["limits"] == {"memory": "256Mi"}
    assert metal["containers"][0]["resources"]["requests"] == cloud["containers"][0]["resources"]["requests"]


def test_each_pool_has_its_sources_and_settings(helm: Helm) -> None:
    pools = _pools(helm.render(_POOLS))
    cloud, metal = (environment(pools[f"{_AGENT}-{name}"]) for name in ("cloud", "metal"))
    assert (cloud["NODE_AGENT_SOURCES"], metal["NODE_AGENT_SOURCES"]) == ("aws", "file")
    assert cloud["NODE_AGENT_LOG_LEVEL"] == metal["NODE_AGENT_LOG_LEVEL"] == "debug"
    assert (metal["NODE_AGENT_FILE_PATH"], metal["A"]) == ("/run/reclaim", "b")
    assert "NODE_AGENT_FILE_PATH" not in cloud


def test_no_pool_selects_the_pods_of_another(helm: Helm) -> None:
    """Policy and monitor select the agents of every pool."""
    objects = helm.render({**_POOLS, "metrics": {"enabled": True, "podMonitor": {"enabled": True}}})
    pools = _pools(objects)
    selectors = {name: each["spec"]["selector"]["matchLabels"].items() for name, each in pools.items()}
    labels = {name: each["spec"]["template"]["metadata"]["labels"].items() for name, each in pools.items()}
    for name, selector in selectors.items():
        assert [other for other in labels if selector <= labels[other]] == [name]
    monitored = one(objects, "PodMonitor", _AGENT)["spec"]["selector"]["matchLabels"].items()
    assert all(monitored <= each for each in labels.values())


def test_agents_of_a_pool_in_the_pods_network_reach_the_supervisor(helm: Helm) -> None:
    rules = one(helm.render(_POOLS), "NetworkPolicy")["spec"]["ingress"]
    assert [peer for rule in rules for peer in rule["from"] if "podSelector" in peer]
    only_hosts = {"agent": {"pools": {"cloud": _POOLS["agent"]["pools"]["cloud"]}}}
    rules = one(helm.render(only_hosts), "NetworkPolicy")["spec"]["ingress"]
    assert not [peer for rule in rules for peer in rule["from"] if "podSelector" in peer]


@pytest.mark.parametrize(
    "pools",
    [
        {"a": {}, "b": {}},
        {"a": {"nodeSelector": {"where": "cloud"}}, "b": {"nodeSelector": {"gpu": "yes"}}},
        {"a": {"nodeSelector": {"where": "cloud"}}, "b": {"nodeSelector": {"where": "cloud"}}},
        {"a": {"nodeSelector": {"where": "cloud"}}, "b": {"nodeSelector": {"where": "metal"}}, "c": {}},
    ],
    ids=["both-everywhere", "other-labels", "same-label", "third-everywhere"],
)
def test_pools_that_may_share_a_node_are_refused(helm: Helm, pools: Values) -> None:
    with pytest.raises(RenderingRefused, match=r"agent\.pools\.[ab] and agent\.pools\.[bc] may select the same nodes"):
        helm.render({"agent": {"pools": pools}})


def test_pools_may_be_kept_apart_by_affinity(helm: Helm) -> None:
    other: Values = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    pools = {"cloud": {"nodeSelector": {"where": "cloud"}}, "rest": {"affinity": other}}
    assert _pools(helm.render({"agent": {"pools": pools}})).keys() == {f"{_AGENT}-cloud", f"{_AGENT}-rest"}


@pytest.mark.parametrize(
    ("pools", "sentence"),
    [
        ({"Cloud": {}}, "Cloud"),
        ({"a": {"enabled": False}}, "at '/agent/pools/a': additional properties 'enabled' not allowed"),
        ({"a": {"sources": ["moon"]}}, "at '/agent/pools/a/sources/0'"),
        ({"a": {"settings": {"pollSeconds": 5}}}, "at '/agent/pools/a/settings/pollSeconds'"),
    ],
    ids=["name", "key", "source", "setting"],
)
def test_a_pool_is_checked_like_the_agents_values(helm: Helm, pools: Values, sentence: str) -> None:
    with pytest.raises(RenderingRefused) as refused:
        helm.render({"agent": {"pools": pools}})
    assert sentence in str(refused.value)


def test_a_pool_may_not_use_the_port_of_the_metrics(helm: Helm) -> None:
    with pytest.raises(RenderingRefused, match=r"agent\.probePort must not be 8475"):
        helm.render({"metrics": {"enabled": True}, "agent": {"pools": {"a": {"probePort": 8475}}}})
