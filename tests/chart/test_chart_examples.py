"""The values of examples/values/ are good for the chart."""

from pathlib import Path

import pytest

from tests.chart.chart_rendering import CHART, Helm, images
from tests.testkit.yaml_text import document

_EXAMPLES = CHART.parents[1] / "examples" / "values"
_FILES = sorted(_EXAMPLES.glob("*.yaml"))
_WITHOUT_REGISTRY = {"narrow"}


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_a_release_can_have_these_values(helm: Helm, file: Path) -> None:
    """Every value changes something: the images come from where the file says, unless it goes with another file."""
    values = document(file.read_text("utf-8"))
    objects = helm.render(values)
    assert objects != helm.render()
    registries = {image.rpartition("/")[0] for image in images(objects)}
    assert (registries == {values.get("images", {}).get("registry")}) is (file.stem not in _WITHOUT_REGISTRY)


def test_each_has_a_line_in_the_index() -> None:
    index = (_EXAMPLES.parent / "README.md").read_text("utf-8")
    assert [file.name for file in _FILES if f"](values/{file.name})" not in index] == []
    assert len(_FILES) > 4
