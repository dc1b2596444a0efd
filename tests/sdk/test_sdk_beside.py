"""Beside the original `kubeai` distribution, which owns kubeai/__init__.py and a module kubeai/elastic.py."""

from pathlib import Path

import pytest

from tests.sdk.sdk_scripts import Clean

WHERE = "import kubeai.elastic as e; print(e.__file__)"


@pytest.fixture
def original(clean: Clean) -> Clean:
    """An environment into which the original can be installed: from uv's cache, else from the index."""
    for source in (["--offline"], []):
        if clean.install(*source, "--no-deps", "--dry-run", "kubeai==0.1.0"):
            return clean
    return pytest.skip("kubeai 0.1.0 is not in uv's cache, and there is no index")


def install_original(where: Clean, *arguments: str) -> None:
    assert where.install(*arguments, "--no-deps", "kubeai==0.1.0")


@pytest.mark.parametrize("first", ["ours", "the original"])
def test_both_work_in_one_environment_in_either_order(original: Clean, wheel: Path, first: str) -> None:
    """A package comes before a module of the same name, and the rest of the original is still there."""
    if first == "ours":
        assert original.install("--no-index", str(wheel))
    install_original(original)
    if first != "ours":
        assert original.install("--no-index", str(wheel))
    assert original.says(WHERE) == str(original.packages / "kubeai" / "elastic" / "__init__.py")
    assert original.says("import kubeai.api; print(kubeai.api.KubeAI.__name__)") == "KubeAI"
    used = "import kubeai.elastic as kubeai; kubeai.init(); print(kubeai.check_alive() == False)"
    assert original.says(used) == "False"


def test_either_can_be_removed_and_the_other_goes_on(original: Clean, wheel: Path) -> None:
    install_original(original)
    assert original.install("--no-index", str(wheel))
    original.remove("kubeai")
    assert original.says(WHERE) == str(original.packages / "kubeai" / "elastic" / "__init__.py")
    install_original(original)
    original.remove("kubeai-elastic")
    assert original.says(WHERE) == str(original.packages / "kubeai" / "elastic.py")


@pytest.mark.parametrize("ours_is_first", [True, False])
def test_from_another_path_entry_the_original_wins(
    original: Clean, wheel: Path, tmp_path: Path, *, ours_is_first: bool
) -> None:
    """A regular package beats a namespace wherever it stands on the path: why one environment is asked for."""
    elsewhere = tmp_path / "elsewhere"
    if ours_is_first:
        install_original(original)
        assert original.install("--no-index", "--target", str(elsewhere), str(wheel))
    else:
        assert original.install("--no-index", str(wheel))
        install_original(original, "--target", str(elsewhere))
    found = original.says(WHERE, elsewhere)
    assert found == str((original.packages if ours_is_first else elsewhere) / "kubeai" / "elastic.py")
