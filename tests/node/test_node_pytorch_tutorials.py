"""The tutorials with PyTorchJobs, followed under the real Training Operator."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chart import chart_page as page
from tests.controlplane.kinds.trainingoperator.trainingoperator_process import training_operator
from tests.frameworks.frameworks_installation import FrameworksNotInstallable, installed, site_packages
from tests.node.node_examples import changed
from tests.node.node_world import NodeWorld
from tests.testkit.controlplane.running import RunningCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600), pytest.mark.long]
_PAGES = page.CHECKOUT / "docs" / "tutorials"
_STARTS = re.compile(r"starts at step (\d+)$", re.MULTILINE)
_TRAINS = re.compile(r"^(\d) ranks, step (\d+)", re.MULTILINE)


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
    """Gives a tutorial to somebody to follow, on a desk whose manifests mount torch."""
    with changed(here.desk, lambda job: _with_packages(job, packages), "torchrun", "huggingface"):
        yield here
        await here.follow("kubectl -n training delete pytorchjobs --all")


async def test_a_job_of_torchrun_loses_a_worker_and_no_process(person: NodeWorld) -> None:
    """In process, rank 0 starts once and each step comes once; by restarts, a run goes on where the last has saved."""
    await _follow(person, "torchrun.md", "Train in process")
    lost = await _follow(person, "torchrun.md", "Lose a worker")
    log = list(lost.values())[-1]
    assert _STARTS.findall(log) == ["0"]
    trained = [(int(ranks), int(step)) for ranks, step in _TRAINS.findall(log)]
    assert [step for _, step in trained] == list(range(0, 20 * len(trained), 20))
    sizes = [ranks for ranks, _ in trained]
    assert list(dict.fromkeys(sizes)) == [3, 2]
    assert sizes[-1] == 3
    again = await _follow(person, "torchrun.md", "The same by restarts")
    [starts] = _STARTS.findall(list(again.values())[-1])
    assert int(starts) > 0
    await _follow(person, "torchrun.md", "Clean up")


async def test_a_trainer_goes_on_where_it_has_saved(person: NodeWorld) -> None:
    """The next run starts at the step at which all ranks have stopped, which is no step of a regular save."""
    await _follow(person, "huggingface.md", "Train")
    reclaimed = await _follow(person, "huggingface.md", "Reclaim a worker")
    [log] = [output for line, output in reclaimed.items() if line.startswith("kubectl -n training logs")]
    [starts] = _STARTS.findall(log)
    assert int(starts) > 0
    assert int(_TRAINS.findall(log)[0][1]) > int(starts)
    await _follow(person, "huggingface.md", "Clean up")


async def _follow(person: NodeWorld, name: str, section: str) -> Mapping[str, str]:
    return {line: await person.follow(line) for line in page.commands(section, _PAGES / name)}


def _with_packages(job: Any, packages: Path) -> Any:
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    [container] = pod["containers"]
    container["env"] = [{"name": "PYTHONPATH", "value": "/packages:/torch"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    container["volumeMounts"].append({"name": "torch", "mountPath": "/torch"})
    pod["volumes"].append({"name": "torch", "hostPath": {"path": str(packages)}})
    return job
