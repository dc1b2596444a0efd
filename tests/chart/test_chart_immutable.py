"""What an upgrade must not change. tests/controlplane/chart/test_chart_upgrade.py upgrades on a real API server."""

import pytest

from tests.chart.chart_rendering import NAMESPACE, NEWEST, RELEASE, Helm, Manifest, one
from tests.controlplane.chart.chart_cluster import PREVIOUS_CHART
from tests.testkit.yaml_text import documents


@pytest.fixture(scope="module", name="previous")
def _previous(helm: Helm) -> list[Manifest]:
    """The default rendering of the previous version."""
    command = ["template", RELEASE, str(PREVIOUS_CHART), "--namespace", NAMESPACE, "--kube-version", NEWEST]
    return documents(helm.run(*command))


def test_an_upgrade_keeps_every_object_under_its_name(helm: Helm, previous: list[Manifest]) -> None:
    """An object of another name would be a second one for a moment, or a gap."""
    names = {(each["kind"], each["metadata"]["name"]) for each in helm.render()}
    assert len(previous) > 15
    assert {(each["kind"], each["metadata"]["name"]) for each in previous} <= names


def test_an_upgrade_changes_no_immutable_field(helm: Helm, previous: list[Manifest]) -> None:
    """The API server refuses another selector or another role, and the release would be stuck."""
    objects = helm.render()
    for before in previous:
        now = one(objects, before["kind"], before["metadata"]["name"])
        assert now.get("roleRef") == before.get("roleRef")
        if before["kind"] in {"Deployment", "DaemonSet"}:
            assert now["spec"]["selector"] == before["spec"]["selector"]
            labels = now["spec"]["template"]["metadata"]["labels"]
            assert before["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_labels_of_the_user_reach_no_selector(helm: Helm) -> None:
    """So any upgrade can change them."""
    plain, labelled = helm.render(), helm.render({"commonLabels": {"team": "ml"}, "agent": {"podLabels": {"a": "b"}}})
    for each in plain:
        if each["kind"] in {"Deployment", "DaemonSet"}:
            now = one(labelled, each["kind"], each["metadata"]["name"])
            assert now["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
            assert now["spec"]["selector"] == each["spec"]["selector"]
