"""The chart for a hub of many clusters."""

import json
from collections.abc import Sequence

import pytest

from charts.files import HUB_CHART
from supervisor.jobs.kind import AnyKind
from supervisor.jobs.registry import KINDS
from tests.chart.chart_rendering import Helm, Manifest, RenderingRefused
from tests.testkit.yaml_text import document, documents


def _rendered(helm: Helm, **values: object) -> list[Manifest]:
    return documents(helm.run("template", "hub", str(HUB_CHART), "--values", "-", given=json.dumps(values)))


def _targets(objects: Sequence[Manifest]) -> list[tuple[str, str]]:
    found = [each["spec"]["target"] for each in objects]
    return [(target["apiVersion"], target["kind"]) for target in found]


def test_it_has_a_customization_for_every_kind_and_nothing_else(helm: Helm) -> None:
    objects = _rendered(helm)
    assert {each["kind"] for each in objects} == {"ResourceInterpreterCustomization"}
    assert sorted(_targets(objects)) == sorted((kind.resource.api_version, kind.resource.kind) for kind in KINDS)
    assert len({each["metadata"]["name"] for each in objects}) == len(KINDS)


def test_only_the_kinds_that_are_asked_for_are_customized(helm: Helm) -> None:
    """A kind that the supervisor does not know is a typing error."""
    assert _targets(_rendered(helm, kinds=["pytorchjob"])) == [("kubeflow.org/v1", "PyTorchJob")]
    with pytest.raises(RenderingRefused, match="pytorchjobs"):
        _rendered(helm, kinds=["pytorchjobs"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_customization_retains_every_field_that_the_kind_declares(kind: AnyKind) -> None:
    """And says to each question that the hub asks what it has to say, unless the hub knows it better."""
    file = HUB_CHART / "files" / "customizations" / f"{kind.name}.yaml"
    scripts = document(file.read_text("utf-8"))["spec"]["customizations"]
    answered = {"retention", "healthInterpretation", "statusReflection", "statusAggregation"}
    assert set(scripts) == answered - ({"statusAggregation"} if kind.hub.hub_aggregates else set())
    retention = scripts["retention"]["luaScript"]
    for field in kind.hub.written:
        names = json.dumps(field.path)[1:-1]
        assert f'{{path = {{{names}}}, mark = "{field.mark}"' in retention
