"""The pod of `helm test`, as it is rendered."""

from tests.chart.chart_rendering import Helm, Manifest, Values, one, pod_of
from tests.chart.test_chart_rights import rights

_NAME = "elastic-job-supervisor-test"
_IN_THE_RELEASES_NAMESPACE = ("events.k8s.io", "events", "", "create")


def _test(helm: Helm, values: Values | None = None) -> Manifest:
    return one(helm.render(values), "Pod", _NAME)


def test_the_drill_is_on_the_tests_own_pod(helm: Helm) -> None:
    """It is opted in and belongs to no job, so that no job is affected."""
    test = _test(helm)
    [container] = test["spec"]["containers"]
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert test["metadata"]["annotations"]["job-supervisor.kube-ai.io/managed-by-job-supervisor"] == "true"
    assert "ownerReferences" not in test["metadata"]
    assert container["command"][:3] == ["job-supervisor", "simulate", "pod/$(POD_NAME)"]
    fields = {each["name"]: each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for each in container["env"]}
    assert fields["POD_NAME"] == "metadata.name"


def test_the_test_runs_as_the_supervisor_that_may_ask_for_a_drill(helm: Helm) -> None:
    objects = helm.render()
    test, deployment = one(objects, "Pod", _NAME)["spec"], pod_of(one(objects, "Deployment"))
    assert test["serviceAccountName"] == deployment["serviceAccountName"]
    assert test["containers"][0]["image"] == deployment["containers"][0]["image"]
    assert _IN_THE_RELEASES_NAMESPACE in set(rights(one(objects, "ClusterRole")["rules"]))


def test_without_the_right_to_make_events_the_test_asks_for_the_status_only(helm: Helm) -> None:
    values = {"supervisor": {"settings": {"kubernetesEvents": False}}}
    assert _IN_THE_RELEASES_NAMESPACE not in set(rights(one(helm.render(values), "ClusterRole")["rules"]))
    assert _test(helm, values)["spec"]["containers"][0]["command"][:2] == ["job-supervisor", "status"]


def test_there_need_not_be_a_test(helm: Helm) -> None:
    assert not [each for each in helm.render({"test": {"enabled": False}}) if each["kind"] == "Pod"]
