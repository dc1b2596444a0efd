"""The tutorial with a JobSet and a TrainJob, followed under the real controllers of both."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.frameworks.frameworks_installation import FRAMEWORKS
from tests.node.node_in_place import RESTARTS_IN_PLACE
from tests.node.node_tutorials import explained, follow, foretold, log, packages, starts, trained, with_framework
from tests.node.node_world import NodeWorld

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
    pytest.mark.long,
    pytest.mark.skipif(RESTARTS_IN_PLACE, reason="the cluster has the JobSet that restarts pods in place"),
]
_PAGE = "jobset.md"


@pytest.fixture
def torch() -> Path:
    """Torch, which lies on the node instead of in the image's base."""
    return packages(FRAMEWORKS)


@pytest_asyncio.fixture(loop_scope="session")
async def person(here: NodeWorld, torch: Path, _trainer: None) -> AsyncIterator[NodeWorld]:
    """Gives the tutorial to somebody to follow, on a desk whose manifests mount torch."""
    with with_framework(here, torch, "jobset-torchrun"):
        yield here
        await here.follow("kubectl -n training delete trainjobs,trainingruntimes,jobsets --all")


async def test_a_jobset_and_then_a_trainjob_go_on_where_they_have_saved(person: NodeWorld) -> None:
    """The next run of each starts where all ranks have stopped, and no restart of the JobSet is used."""
    await follow(person, _PAGE, "Train in a JobSet")
    _goes_on(await follow(person, _PAGE, "Reclaim a worker"))
    _goes_on(await follow(person, _PAGE, "The same as a TrainJob"))
    await follow(person, _PAGE, "Clean up")


def _goes_on(said: Mapping[str, str]) -> None:
    assert "saves a checkpoint, is suspended" in foretold(said)
    first, *others = starts(log(said))
    assert first > 0
    assert others == [first] * 2
    assert f"saved a checkpoint at step {first}," in explained(said)
    assert {ranks for ranks, _ in trained(log(said))} == {3}
    assert list(said.values())[-1] == "0"
