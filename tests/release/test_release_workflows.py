"""The workflows of the forge run targets of the Makefile, with few rights and pinned actions."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testkit.yaml_text import document

ROOT = Path(__file__).parents[2]
_TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
_GO = re.compile(r"^go (\d+)\.(\d+)", re.MULTILINE)
_WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _jobs(path: Path) -> list[dict[str, Any]]:
    return list(document(path.read_text("utf-8"))["jobs"].values())


def _steps(path: Path, key: str) -> list[str]:
    return [step[key] for job in _jobs(path) for step in job["steps"] if key in step]


def _targets(job: dict[str, Any]) -> Iterator[str]:
    """What the job's steps give to make; each value of a matrix in its turn."""
    matrix = job.get("strategy", {}).get("matrix", {"target": [""]})
    for target in matrix["target"]:
        for step in job["steps"]:
            if "run" in step:
                command = step["run"].replace("${{ matrix.target }}", target)
                [named] = re.findall(r'^make ([^ ]+)(?: (?:ARGS|VERSION)="[^"\n]*")*$', command)
                yield named


def test_there_are_workflows() -> None:
    assert [path.name for path in _WORKFLOWS] == ["ci.yml", "release.yml"]
    assert {"check", "test", "release"} <= _TARGETS


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_every_command_is_a_target_of_the_makefile(path: Path) -> None:
    named = {target for job in _jobs(path) for target in _targets(job)}
    assert named
    assert named - _TARGETS == set()


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_and_nothing_else(path: Path) -> None:
    assert document(path.read_text("utf-8"))["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in _jobs(path))
    assert "secrets." not in path.read_text("utf-8")


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert len(used) == len(_steps(path, "uses")) > 0
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)] == []


def test_ci_runs_what_the_script_runs() -> None:
    """But for benchmarks, which mean nothing on a shared machine, and for another Kubernetes, built there alone."""
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    script = set(re.findall(r"^(?:make|\t\$\(MAKE\)) ([a-z][a-z-]*)", text, re.MULTILINE))
    named = {target for job in _jobs(ROOT / ".github" / "workflows" / "ci.yml") for target in _targets(job)}
    assert named == (script - {"bench"}) | {"test-versions"}


def test_ci_has_the_go_that_the_pins_of_the_tests_need() -> None:
    """With an older one the suites would skip what they cannot build."""
    pins = (ROOT / "tests" / "testkit" / "controlplane" / "pins").rglob("go.mod")
    needed = max(_GO.findall(pin.read_text("utf-8"))[0] for pin in pins)
    [given] = re.findall(r'go-version: "(\d\.\d+)"', (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    assert tuple(map(int, given.split("."))) >= tuple(map(int, needed))


def test_the_hook_before_a_commit_is_the_static_checks() -> None:
    [repository] = document((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make --silent check"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_every_file_of_the_forge_is_yaml(path: Path) -> None:
    assert isinstance(document(path.read_text("utf-8")), dict)
