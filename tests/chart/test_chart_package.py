"""The package of the chart that a release has."""

import tarfile
from pathlib import Path

import pytest

from release.chart import package
from release.checkout import Checkout
from tests.chart.chart_rendering import CHART, NAMESPACE, RELEASE, Helm


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    return package(Checkout(CHART.parents[1], epoch=1_767_225_600, commit="none"), "0.0.0", tmp_path)


def _files(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return set(archive.getnames())


def test_it_has_the_files_of_helms_own_package(helm: Helm, packaged: Path, tmp_path: Path) -> None:
    (tmp_path / "helms").mkdir()
    helm.run("package", str(CHART), "--destination", str(tmp_path / "helms"))
    [theirs] = (tmp_path / "helms").iterdir()
    assert _files(packaged) == _files(theirs)


def test_helm_renders_it_as_the_folder(helm: Helm, packaged: Path) -> None:
    options = ("--namespace", NAMESPACE, "--kube-version", "1.37.0", "--set", "images.registry=localhost")
    assert helm.run("template", RELEASE, str(packaged), *options) == helm.run("template", RELEASE, str(CHART), *options)
