"""A copy of the code that demo and replay run, with an environment that imports only this copy."""

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parent.parent
"""The root of the checkout."""

_CODE = (
    "elastic_job_supervisor",
    "job_supervisor",
    "node_agent",
    "supervisor",
    "servicekit",
    "simulator",
    "sdk",
    "proto",
)
_TESTS = "tests"
_IMPORT_PATH = (".", "proto", "sdk")
_PACKAGES = (
    "elastic_job_supervisor",
    "job_supervisor",
    "node_agent",
    "supervisor",
    "servicekit",
    "simulator",
    "reclaim.v1",
    "kubeai.elastic",
)
# Each would prevent Python from writing the compiled files that `imported` checks.
_HIDES_IMPORTS = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")

_PROBE = """
import importlib, json, sys
print(json.dumps({name: list(importlib.import_module(name).__path__)[0] for name in sys.argv[1:]}))
"""


class ForeignCodeError(RuntimeError):
    """A process of the tree would import a package from elsewhere."""


@dataclass(frozen=True, slots=True)
class Tree:
    root: Path

    def environment(self, temporary: Path) -> dict[str, str]:
        """Return the variables of a process that runs this code, with its temporary files in `temporary`."""
        inherited = {name: value for name, value in os.environ.items() if name not in _HIDES_IMPORTS}
        path = os.pathsep.join(str(self.root / folder) for folder in _IMPORT_PATH)
        return {**inherited, "PYTHONPATH": path, "TMPDIR": str(temporary), "COLUMNS": "200"}

    def check_origins(self, packages: tuple[str, ...] = _PACKAGES) -> None:
        """Check from where a process of this tree imports the packages.

        Raises:
            ForeignCodeError: From elsewhere, such as the checkout's editable installation.
        """
        # In a folder of its own, because Python puts a script's folder on the path.
        probe = self.root / "probe" / "probe.py"
        probe.parent.mkdir(exist_ok=True)
        probe.write_text(_PROBE, encoding="utf-8")
        command = [sys.executable, str(probe), *packages]
        output = subprocess.check_output(command, env=self.environment(self.root), cwd=self.root)  # noqa: S603
        self._refuse_foreign(json.loads(output))

    def _refuse_foreign(self, origins: Mapping[str, str]) -> None:
        for name, folder in origins.items():
            if not Path(folder).is_relative_to(self.root):
                raise ForeignCodeError(f"{name} would be imported from {folder}, not from {self.root}")

    def imported(self, file: str) -> bool:
        """Whether a process has imported this changed file from this tree, which leaves a compiled file."""
        return self._compiled(file).exists()

    def compile(self) -> None:
        """Compile everything once. Otherwise many processes at a time would, which takes seconds on two cores."""
        compileall.compile_dir(self.root, quiet=2)

    def put(self, mutant: Mutant) -> None:
        """Put a defect into the tree. Raises as `Mutant.changed` does."""
        mutant.apply(self.root)
        for file in mutant.files:
            self._compiled(file).unlink(missing_ok=True)

    def put_tests(self, source: Path = ROOT) -> None:
        """Copy the tests of `source` and their settings into the tree, for a command that runs some of them."""
        shutil.copytree(source / _TESTS, self.root / _TESTS, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(source / "pyproject.toml", self.root)

    def _compiled(self, file: str) -> Path:
        return Path(cache_from_source(str(self.root / file)))


def copy(target: Path, source: Path = ROOT) -> Tree:
    """Copy the code without compiled files into the empty directory `target`."""
    return _copy(target, source, shutil.ignore_patterns("__pycache__"))


def copy_compiled(target: Path, source: Tree) -> Tree:
    """Copy a tree with its compiled files. They stay valid, because file times are copied as well."""
    return _copy(target, source.root, None)


def _copy(target: Path, source: Path, ignore: Callable[[Any, list[str]], set[str]] | None) -> Tree:
    for name in _CODE:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignore)
    return Tree(target.resolve())
