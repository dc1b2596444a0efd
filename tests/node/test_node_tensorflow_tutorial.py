"""The tutorial with a TFJob, followed under the real Training Operator with the real TensorFlow."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.frameworks.frameworks_installation import TENSORFLOW
from tests.node.node_tutorials import explained, follow, foretold, log, packages, starts, trained, with_framework
from tests.node.node_world import NodeWorld

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600), pytest.mark.long]
_PAGE = "tensorflow.md"


@pytest.fixture
def tensorflow() -> Path:
    """TensorFlow, which lies on the node instead of in the image's base."""
    return packages(TENSORFLOW)


@pytest_asyncio.fixture(loop_scope="session")
async def person(here: NodeWorld, tensorflow: Path, _training_operator: None) -> AsyncIterator[NodeWorld]:
    """Gives the tutorial to somebody to follow, on a desk whose manifest mounts TensorFlow."""
    with with_framework(here, tensorflow, "tensorflow"):
        yield here
        await here.follow("kubectl -n training delete tfjobs --all")


async def test_the_workers_of_a_tfjob_go_on_where_they_have_saved(person: NodeWorld) -> None:
    """The next run starts where all workers have stopped, and they have found each other again by TF_CONFIG."""
    await follow(person, _PAGE, "Train")
    reclaimed = await follow(person, _PAGE, "Reclaim a worker")
    assert "saves a checkpoint, is suspended" in foretold(reclaimed)
    [step] = starts(log(reclaimed))
    assert step > 0
    assert trained(log(reclaimed))[0][1] > step
    assert f"saved a checkpoint at step {step}," in explained(reclaimed)
    await follow(person, _PAGE, "Clean up")
