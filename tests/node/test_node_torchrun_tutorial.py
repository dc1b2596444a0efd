"""The tutorial "torchrun in a PyTorchJob", followed under the real Training Operator."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chart import chart_page as page
from tests.controlplane.kinds.trainingoperator.trainingoperator_process import training_operator
from tests.frameworks.frameworks_installation import FrameworksNotInstallable, installed, site_packages
from tests.node.node_world import NodeWorld
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.yaml_text import document

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600), pytest.mark.long]
_PAGE = page.CHECKOUT / "docs" / "tutorials" / "torchrun.md"
_EXAMPLE = Path("examples") / "torchrun"
_STARTS = re.compile(r"^starts at step (\d+)$", re.MULTILINE)
_TRAINS = re.compile(r"^(\d) ranks, step (\d+),", re.MULTILINE)


@pytest.fixture(scope="module")
def _operator(cluster: RunningCluster) -> Iterator[None]:
    with training_operator(cluster, "pytorchjob"):
        yield


@pytest.fixture
def packages() -> Path:
    """Torch, which lies on the node instead of in the image's base."""
    try:
        return site_packages(installed())
    except FrameworksNotInstallable as reason:
        pytest.skip(str(reason))


@pytest_asyncio.fixture(loop_scope="session")
async def person(here: NodeWorld, packages: Path, _operator: None) -> AsyncIterator[NodeWorld]:
    """Who follows the tutorial, on a desk whose manifests mount torch."""
    examples = here.desk / "examples"
    examples.unlink()
    (here.desk / _EXAMPLE).mkdir(parents=True)
    for manifest in (page.CHECKOUT / _EXAMPLE).glob("*.yaml"):
        with_torch = _with_packages(document(manifest.read_text("utf-8")), packages)
        (here.desk / _EXAMPLE / manifest.name).write_text(json.dumps(with_torch), "utf-8")
    yield here
    await here.follow("kubectl -n training delete pytorchjob torchrun --ignore-not-found")


async def test_the_commands_of_the_tutorial_lose_a_worker_and_no_process(person: NodeWorld) -> None:
    """In process, rank 0 starts once and each step comes once; by restarts, a run goes on where the last has saved."""
    await _follow(person, "Train in process")
    lost = await _follow(person, "Lose a worker")
    log = list(lost.values())[-1]
    assert _STARTS.findall(log) == ["0"]
    trained = [(int(ranks), int(step)) for ranks, step in _TRAINS.findall(log)]
    assert [step for _, step in trained] == list(range(0, 20 * len(trained), 20))
    sizes = [ranks for ranks, _ in trained]
    assert list(dict.fromkeys(sizes)) == [3, 2]
    assert sizes[-1] == 3
    again = await _follow(person, "The same by restarts")
    [starts] = _STARTS.findall(list(again.values())[-1])
    assert int(starts) > 0
    await _follow(person, "Clean up")


async def _follow(person: NodeWorld, section: str) -> Mapping[str, str]:
    return {line: await person.follow(line) for line in page.commands(section, _PAGE)}


def _with_packages(job: Any, packages: Path) -> Any:
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    [container] = pod["containers"]
    container["env"] = [{"name": "PYTHONPATH", "value": "/packages:/torch"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    container["volumeMounts"].append({"name": "torch", "mountPath": "/torch"})
    pod["volumes"].append({"name": "torch", "hostPath": {"path": str(packages)}})
    return job
