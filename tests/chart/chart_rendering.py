"""The chart as helm renders it, with no cluster."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.testkit.yaml_text import documents

CHART = Path(__file__).parents[2] / "charts" / "elastic-job-supervisor"
NAMESPACE = "arena-system"
RELEASE = "elastic-job-supervisor"
WITH_REGISTRY = {"images": {"registry": "registry.example.com/arena"}}
"""The only value that an installation cannot do without."""
NEWEST = "1.37.0"
_SECONDS = 60.0

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class RenderingRefused(Exception):  # noqa: N818  # It names what is so.
    """Helm did not render the chart; the message is helm's."""


@dataclass(frozen=True, slots=True)
class Helm:
    program: Path

    def render(self, values: Values | None = None, version: str = NEWEST) -> list[Manifest]:
        """Every object of the chart with those values and a registry, for a version of Kubernetes.

        Raises:
            RenderingRefused: The values are no good.
        """
        return documents(_rendered(self, json.dumps({**WITH_REGISTRY, **(values or {})}), version))

    def run(self, *command: str, given: str = "") -> str:
        """Run helm and return its output.

        Raises:
            RenderingRefused: It failed.
        """
        done = subprocess.run(
            [str(self.program), *command], input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode:
            raise RenderingRefused(done.stderr)
        return done.stdout


@cache
def _rendered(helm: Helm, values: str, version: str) -> str:
    """Once for all tests: the same values make the same text, as one of them shows."""
    command = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", version, "--values", "-"]
    return helm.run(*command, given=values)


def one(objects: Sequence[Manifest], kind: str, name: str = RELEASE) -> Manifest:
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def workloads(objects: Sequence[Manifest]) -> list[Manifest]:
    return [each for each in objects if each["kind"] in {"Deployment", "DaemonSet"}]


def images(objects: Sequence[Manifest]) -> set[str]:
    return {container["image"] for each in workloads(objects) for container in pod_of(each)["containers"]}


def pod_of(workload: Manifest) -> Manifest:
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def environment(workload: Manifest) -> dict[str, str]:
    """The variables of a container. A variable from the downward API has a made-up text."""
    [container] = pod_of(workload)["containers"]
    return {each["name"]: each.get("value", "from-the-pod") for each in container["env"]}
