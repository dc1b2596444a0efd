"""The package as it is installed and imported."""

import ast
import subprocess
import sys
import tomllib

import kubeai.elastic
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.sdk.sdk_scripts import SDK

SOURCES = sorted((SDK / "kubeai").rglob("*.py"))
_WITHOUT_TORCH = {
    "copy_files.py",
    "data.py",
    "decisions.py",
    "following.py",
    "moves.py",
    "ranks_in_store.py",
    "settings.py",
    "state_keeper.py",
    "stderr.py",
}
"""An import contract has the same modules."""
IN_TORCHS_PROCESSES = {
    *(SDK / "kubeai" / "torchrun" / name for name in ("handler.py", "stores.py")),
    *(path for path in (SDK / "kubeai" / "torch").glob("*.py") if path.name not in _WITHOUT_TORCH),
}


def test_it_is_a_namespace_package_that_owns_no_foreign_name() -> None:
    assert SOURCES
    assert not (SDK / "kubeai" / "__init__.py").exists()
    assert not (SDK / "kubeai" / "elastic.py").exists()


def test_it_needs_the_standard_library_alone() -> None:
    """Only a script that uses a framework imports an integration with it, and only torch loads its backend."""
    foreign = set()
    for source in SOURCES:
        if source.parent.name == "integrations" or source in IN_TORCHS_PROCESSES:
            continue
        for node in ast.walk(ast.parse(source.read_text(), feature_version=(3, 8))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module or "")
            foreign |= {name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, "kubeai"}}
    assert not foreign


def test_all_names_are_there_and_no_other() -> None:
    assert all(hasattr(kubeai.elastic, name) for name in kubeai.elastic.__all__)
    assert not hasattr(kubeai.elastic, "invented")


def test_importing_it_loads_nothing_heavy() -> None:
    shown = "import sys; old = set(sys.modules); import kubeai.elastic; print(*sorted(set(sys.modules) - old))"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, check=True, text=True).stdout.split()
    assert not {"ssl", "http.client", "dataclasses", "kubeai.elastic.api"} & set(loaded)


def test_alive_before_init() -> None:
    shown = "from kubeai.elastic import check_alive; print(check_alive(), end='')"
    done = subprocess.run([sys.executable, *("-W", "error", "-c", shown)], capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("True", "")


def test_it_can_be_built_under_each_python_that_it_runs_under() -> None:
    """One release of the build tool for each; the newest ones need a newer Python than the library does."""
    project = tomllib.loads((SDK / "pyproject.toml").read_text())
    needed = [Requirement(each) for each in project["build-system"]["requires"]]
    for minor in range(8, 16):
        version = {"python_version": f"3.{minor}"}
        assert version["python_version"] in SpecifierSet(project["project"]["requires-python"])
        used = [str(each.specifier) for each in needed if each.marker is None or each.marker.evaluate(version)]
        assert used == ["==1.27.0" if minor < 10 else "==1.33.0"]
