"""The operator for TrainingJobs, which the chart has as an option."""

from collections.abc import Mapping
from typing import Any

import pytest

from charts.settings_schema import OPERATOR_OWNED, operator_settings
from servicekit.settings import load
from tests.chart.chart_rendering import Helm, environment, one
from trainingjob_operator.settings import PREFIX, TrainingJobOperatorSettings

_NAME = "elastic-job-supervisor-trainingjobs"
_DEFINED = {f"{plural}.kai.alibabacloud.com" for plural in ("trainingjobs", "scaleins", "scaleouts")}
_SAMPLES = {"gang": "volcano", "leaseSeconds": 30, "requestSeconds": 5.5, "logFormat": "console", "logLevel": "debug"}


def rendered(helm: Helm, settings: Mapping[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
    """Renders the chart with the operator; everything of the operator itself is in `more`."""
    return helm.render({"trainingJobOperator": {"enabled": True, "settings": settings or {}, **more}})


def named(objects: list[dict[str, Any]]) -> set[str]:
    return {each["metadata"]["name"] for each in objects}


def test_nothing_of_it_is_there_unless_somebody_asks_for_it(helm: Helm) -> None:
    assert not named(helm.render()) & {_NAME, *_DEFINED}
    assert named(rendered(helm)) >= {_NAME, *_DEFINED}
    assert not named(rendered(helm, installCRDs=False)) & _DEFINED


def test_it_starts_with_what_the_chart_sets(helm: Helm) -> None:
    objects = helm.render({"trainingJobOperator": {"enabled": True}, "metrics": {"enabled": True}})
    variables = environment(one(objects, "Deployment", _NAME))
    assert load(TrainingJobOperatorSettings, PREFIX, variables)
    assert {name.removeprefix(PREFIX).lower() for name in variables} == OPERATOR_OWNED


@pytest.mark.parametrize("name", sorted(operator_settings()["properties"]))
def test_every_setting_reaches_it(helm: Helm, name: str) -> None:
    value = _SAMPLES.get(name, "some-text")
    variables = environment(one(rendered(helm, {name: value}), "Deployment", _NAME))
    field = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    assert str(getattr(load(TrainingJobOperatorSettings, PREFIX, variables), field)) == str(value)


def test_its_pods_are_placed_and_secured_like_the_supervisors(helm: Helm) -> None:
    objects = helm.render(
        {"trainingJobOperator": {"enabled": True}, "supervisor": {"nodeSelector": {"pool": "system"}}}
    )
    ours, theirs = (
        one(objects, "Deployment", name)["spec"]["template"]["spec"] for name in (_NAME, "elastic-job-supervisor")
    )
    assert ours["nodeSelector"] == theirs["nodeSelector"]
    assert ours["securityContext"] == theirs["securityContext"]
    assert ours["containers"][0]["securityContext"] == theirs["containers"][0]["securityContext"]
    assert ours["containers"][0]["image"] == theirs["containers"][0]["image"]


@pytest.mark.parametrize(("gang", "group"), [("none", None), ("volcano", "scheduling.volcano.sh")])
def test_it_may_write_podgroups_only_of_its_gang_scheduler(helm: Helm, gang: str, group: str | None) -> None:
    rules = one(rendered(helm, {"gang": gang}), "ClusterRole", _NAME)["rules"]
    assert [rule["apiGroups"] for rule in rules if "podgroups" in rule["resources"]] == ([[group]] if group else [])


def test_it_reads_no_secret(helm: Helm) -> None:
    rules = one(rendered(helm), "ClusterRole", _NAME)["rules"]
    assert [rule["verbs"] for rule in rules if "secrets" in rule["resources"]] == [["create"]]
