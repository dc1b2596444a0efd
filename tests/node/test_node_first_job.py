"""The tutorial "a cluster in ten minutes", followed to the job's third run."""

import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
import pytest_asyncio

from tests.chart import chart_page as page
from tests.node.node_tutorials import foretold
from tests.node.node_world import NodeWorld

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600), pytest.mark.long]
_PAGE = page.CHECKOUT / "docs" / "tutorials" / "cluster.md"
_STEPS = re.compile(r"rank (\d): starts at step (\d+)$", re.MULTILINE)
_MADE_BEFORE = "kubectl create namespace "
_RANKS = 3
_LOOKED_AT = (
    "kubectl -n training get pods -o wide",
    "kubectl -n training get job first-job -o jsonpath='{.status}'",
    "kubectl -n training logs -l job-name=first-job --prefix --tail=-1 | grep -v loss",
    "kubectl -n arena-system exec deployment/elastic-job-supervisor -- job-supervisor explain first-job -n training",
    "kubectl get supervisedjobs,reclaimnotices --all-namespaces",
    "kubectl -n arena-system logs -l app.kubernetes.io/component=supervisor --tail=-1 | grep -v undefined",
)
"""These commands show most of what happened when one of the tutorial fails."""


@pytest_asyncio.fixture(loop_scope="session")
async def person(here: NodeWorld) -> AsyncIterator[NodeWorld]:
    """Gives the tutorial to somebody to follow. Afterwards the installation is again that of the install page."""
    yield here
    await here.follow("kubectl -n training delete job first-job --ignore-not-found")
    for line in page.commands(page.INSTALL):
        if line.startswith(("helm upgrade ", "kubectl -n arena-system rollout ")):
            await here.follow(line)
    await here.follow("kubectl delete -f examples/first-job/metadata.yaml")


async def test_the_commands_of_the_tutorial_lead_to_a_job_that_survives(person: NodeWorld) -> None:
    """Each run goes on where the one before has saved, and no retry is used."""
    await _follow(person, "Install")
    assert _starts(await _follow(person, "Train")) == [0] * _RANKS
    drilled = await _follow(person, "Hold a drill")
    assert "saves a checkpoint, is suspended" in foretold(drilled)
    [second, *others] = _starts(drilled)
    assert second > 0
    assert others == [second] * (_RANKS - 1)
    reclaimed = await _follow(person, "Reclaim the node")
    [third, *others] = _starts(reclaimed)
    assert third > second
    assert others == [third] * (_RANKS - 1)
    assert not list(reclaimed.values())[-1]


async def _follow(person: NodeWorld, section: str) -> Mapping[str, str]:
    """What each command of a section has written; its namespaces are there already. Prints how long they took."""
    begun = time.monotonic()
    lines = [line for line in page.commands(section, _PAGE) if not line.startswith(_MADE_BEFORE)]
    try:
        said = {line: await person.follow(line) for line in lines}
    except AssertionError as error:
        for line in _LOOKED_AT:
            error.add_note(f"$ {line}\n{await person.follow(f'{line} || true')}")
        raise
    sys.stdout.write(f"{section}: {time.monotonic() - begun:.0f} s\n")
    return said


def _starts(said: Mapping[str, str]) -> Sequence[int]:
    """At which step each rank has started, by the logs that a section shows."""
    [logs] = [output for line, output in said.items() if line.startswith("kubectl -n training logs")]
    ranks = {int(rank): int(step) for rank, step in _STEPS.findall(logs)}
    assert len(ranks) == _RANKS
    return list(ranks.values())
