"""Tutorials that somebody follows, whose manifests find a framework on the node instead of in the image."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chart import chart_page as page
from tests.frameworks.frameworks_installation import (
    FrameworksEnvironment,
    FrameworksNotInstallable,
    installed,
    site_packages,
)
from tests.node.node_world import NodeWorld
from tests.testkit.yaml_text import documents

_PAGES = page.CHECKOUT / "docs" / "tutorials"
_EXAMPLES = Path("examples")
_FRAMEWORK = "/framework"
_STARTS = re.compile(r"starts at step (\d+)$", re.MULTILINE)
_TRAINS = re.compile(r"^(\d) ranks, step (\d+)", re.MULTILINE)


def packages(environment: FrameworksEnvironment) -> Path:
    """Those of an environment; without them the test is skipped."""
    try:
        return site_packages(installed(environment))
    except FrameworksNotInstallable as reason:
        pytest.skip(str(reason))


@contextmanager
def with_packages(here: NodeWorld, mounted: Mapping[str, Path], *examples: str, **variables: str) -> Iterator[None]:
    """The desk has these examples, whose containers have directories of the node at these paths, and the variables."""
    (here.desk / _EXAMPLES).unlink()
    for example in examples:
        folder = here.desk / _EXAMPLES / example
        folder.mkdir(parents=True)
        for manifest in (page.CHECKOUT / _EXAMPLES / example).glob("*.yaml"):
            # Through JSON, as roles that share a pod by an alias of YAML would be changed twice.
            objects = json.loads(json.dumps(documents(manifest.read_text("utf-8"))))
            for pod in _pods(objects):
                _mount(pod, mounted, {**variables, "OMP_NUM_THREADS": "1"})
            (folder / manifest.name).write_text("".join(f"---\n{json.dumps(each)}\n" for each in objects), "utf-8")
    try:
        yield
    finally:
        shutil.rmtree(here.desk / _EXAMPLES)
        (here.desk / _EXAMPLES).symlink_to(page.CHECKOUT / _EXAMPLES)


def with_framework(here: NodeWorld, found: Path, *examples: str) -> AbstractContextManager[None]:
    """The desk has these examples, whose containers import what they need from those packages of the node."""
    return with_packages(here, {_FRAMEWORK: found}, *examples, PYTHONPATH=f"/packages:{_FRAMEWORK}")


async def follow(person: NodeWorld, name: str, section: str) -> Mapping[str, str]:
    """What each command of a section of a tutorial has written."""
    return {line: await person.follow(line) for line in page.commands(section, _PAGES / name)}


def log(said: Mapping[str, str]) -> str:
    """The last log that a section shows."""
    return [output for line, output in said.items() if line.startswith("kubectl -n training logs")][-1]


def explained(said: Mapping[str, str]) -> str:
    """What the last `explain` of a section says."""
    return [output for line, output in said.items() if " -- job-supervisor explain " in line][-1]


def foretold(said: Mapping[str, str]) -> str:
    """Returns the first line of the last drill of a section, which says what will become of the job."""
    return [output.splitlines()[0] for line, output in said.items() if " -- job-supervisor simulate " in line][-1]


def starts(text: str) -> Sequence[int]:
    """The step at which each run of a log has started."""
    return [int(step) for step in _STARTS.findall(text)]


def trained(text: str) -> Sequence[tuple[int, int]]:
    """The number of ranks and the step of each line of a log that says both."""
    return [(int(ranks), int(step)) for ranks, step in _TRAINS.findall(text)]


def _pods(part: Any) -> Iterator[Any]:
    """The specs of pods in manifests, wherever their kinds have them."""
    if isinstance(part, dict) and "containers" in part:
        yield part
    elif isinstance(part, dict | list):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _pods(each)


def _mount(pod: Any, mounted: Mapping[str, Path], variables: Mapping[str, str]) -> None:
    names = {path: f"packages-{number}" for number, path in enumerate(mounted)}
    [container] = pod["containers"]
    container.setdefault("env", []).extend({"name": name, "value": value} for name, value in variables.items())
    mounts = [{"name": name, "mountPath": path} for path, name in names.items()]
    container.setdefault("volumeMounts", []).extend(mounts)
    volumes = [{"name": names[path], "hostPath": {"path": str(source)}} for path, source in mounted.items()]
    pod.setdefault("volumes", []).extend(volumes)
