"""The tutorial on Horovod, followed under the real mpi-operator and under ours: horovodrun over ssh, sums by gloo."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chart import chart_page as page
from tests.controlplane.kinds.mpijob.mpijob_operator import mpi_operator
from tests.frameworks import frameworks_installation
from tests.horovod.horovod_installation import HorovodNotInstallable, compiled, site_packages
from tests.node.node_horovod import operating
from tests.node.node_tutorials import with_packages
from tests.node.node_world import NodeWorld
from tests.testkit.controlplane.running import RunningCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900), pytest.mark.long]
_PAGE = page.CHECKOUT / "docs" / "tutorials" / "horovod.md"
_STARTS = re.compile(r"<stdout>: ?starts at step (\d+)$", re.MULTILINE)
_TRAINS = re.compile(r"<stdout>: ?(\d) ranks, step (\d+)", re.MULTILINE)
_LOOKED_AT = (
    "kubectl -n training get pods -o wide",
    "kubectl -n training logs job/horovod-launcher --tail=60",
    "kubectl -n training logs horovod-arena-launcher --tail=60",
    "kubectl -n training get mpijobs,trainingjobs -o jsonpath='{.items[*].status}'",
    "kubectl get supervisedjobs,reclaimnotices --all-namespaces",
)
"""These commands show most of what happened when one of the tutorial fails."""


@pytest.fixture(scope="module")
def _operator(cluster: RunningCluster) -> Iterator[None]:
    with mpi_operator(cluster):
        yield


@pytest.fixture
def packages() -> Mapping[str, Path]:
    """Horovod and torch by where a pod has them: they lie on the node instead of in the image's base."""
    try:
        home = compiled()
    except HorovodNotInstallable as reason:
        pytest.skip(f"Horovod cannot be compiled here: {reason}")
    torch = frameworks_installation.site_packages(frameworks_installation.installed())
    return {"/horovod": site_packages(home), "/torch": torch}


@pytest_asyncio.fixture(loop_scope="session")
async def person(
    here: NodeWorld, packages: Mapping[str, Path], _operator: None, tmp_path: Path
) -> AsyncIterator[NodeWorld]:
    """Gives the tutorial to somebody to follow, on a desk whose manifests mount Horovod and torch."""
    # No variable says where they are: horovodrun starts programs on the workers without its environment.
    (tmp_path / "job.pth").write_text("".join(f"{each}\n" for each in packages), encoding="ascii")
    mounted = {**packages, str(site_packages(Path("/root/.local"))): tmp_path}
    with with_packages(here, mounted, "horovod"):
        yield here
        await here.follow("kubectl -n training delete mpijobs,trainingjobs --all")


async def test_an_mpijob_shrinks_grows_and_resumes(person: NodeWorld) -> None:
    """Each step comes once, with three, two and three ranks; the next run goes on at the step that was saved."""
    await _follow(person, "Train")
    lost = await _follow(person, "Lose a worker")
    sizes = _sizes(list(lost.values())[-1])
    assert list(dict.fromkeys(sizes)) == [3, 2]
    assert sizes[-1] == 3
    resumed = await _follow(person, "Fall below the minimum")
    log = list(resumed.values())[-1]
    [starts] = _STARTS.findall(log)
    assert int(starts) >= 20 * len(sizes)
    assert int(_TRAINS.findall(log)[0][1]) - int(starts) in range(1, 21)
    await _follow(person, "Clean up")


async def test_a_trainingjob_as_arena_makes_it_shrinks(person: NodeWorld) -> None:
    """Each step comes once, with three and two ranks."""
    async with operating(person):
        lost = await _follow(person, "With Arena")
        assert list(dict.fromkeys(_sizes(list(lost.values())[-1]))) == [3, 2]
        await _follow(person, "Clean up")


def _sizes(log: str) -> Sequence[int]:
    """Of the ring, at each step that rank 0 has printed: every twentieth of a run that has started once, from 0."""
    assert _STARTS.findall(log) == ["0"]
    trained = [(int(ranks), int(step)) for ranks, step in _TRAINS.findall(log)]
    assert [step for _, step in trained] == list(range(20, 20 * len(trained) + 1, 20))
    return [ranks for ranks, _ in trained]


async def _follow(person: NodeWorld, section: str) -> Mapping[str, str]:
    try:
        return {line: await person.follow(line) for line in page.commands(section, _PAGE)}
    except AssertionError as error:
        for line in _LOOKED_AT:
            error.add_note(f"$ {line}\n{await person.follow(f'{line} || true')}")
        raise
