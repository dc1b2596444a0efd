"""The tutorials with PyTorchJobs, followed under the real Training Operator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.frameworks.frameworks_installation import FRAMEWORKS
from tests.node.node_tutorials import follow, log, packages, starts, trained, with_framework
from tests.node.node_world import NodeWorld

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture
def torch() -> Path:
    """Torch, which lies on the node instead of in the image's base."""
    return packages(FRAMEWORKS)


@pytest_asyncio.fixture(loop_scope="session")
async def person(here: NodeWorld, torch: Path, _training_operator: None) -> AsyncIterator[NodeWorld]:
    """Gives a tutorial to somebody to follow, on a desk whose manifests mount torch."""
    with with_framework(here, torch, "torchrun", "huggingface"):
        yield here
        await here.follow("kubectl -n training delete pytorchjobs --all")


async def test_a_job_of_torchrun_loses_a_worker_and_no_process(person: NodeWorld) -> None:
    """In process, rank 0 starts once and each step comes once; by restarts, a run goes on where the last has saved."""
    await follow(person, "torchrun.md", "Train in process")
    lost = log(await follow(person, "torchrun.md", "Lose a worker"))
    assert starts(lost) == [0]
    assert [step for _, step in trained(lost)] == list(range(0, 20 * len(trained(lost)), 20))
    sizes = [ranks for ranks, _ in trained(lost)]
    assert list(dict.fromkeys(sizes)) == [3, 2]
    assert sizes[-1] == 3
    again = log(await follow(person, "torchrun.md", "The same by restarts"))
    [step] = starts(again)
    assert step > 0
    await follow(person, "torchrun.md", "Clean up")


async def test_a_trainer_goes_on_where_it_has_saved(person: NodeWorld) -> None:
    """The next run starts at the step at which all ranks have stopped, which is no step of a regular save."""
    await follow(person, "huggingface.md", "Train")
    reclaimed = log(await follow(person, "huggingface.md", "Reclaim a worker"))
    [step] = starts(reclaimed)
    assert step > 0
    assert trained(reclaimed)[0][1] > step
    await follow(person, "huggingface.md", "Clean up")
