"""The install page, followed from nothing to a job that outlives its node."""

import json
import time
from pathlib import Path

import pytest

from tests.chart import chart_page as page
from tests.node.node_running import NODE
from tests.node.node_world import TRAIN, NodeWorld, training_job
from tests.testkit.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
_JOB = "resnet"
_LEAD_SECONDS = 60.0
_DRILL = "kubectl -n arena-system exec"


async def test_the_commands_of_the_install_page_lead_to_a_protected_job(here: NodeWorld) -> None:
    """Opted in, seen to be covered, drilled, resumed; and then its node is really announced to be gone."""
    home = here.home(_JOB)
    (here.desk / "job.yaml").write_text(json.dumps(training_job(_JOB, home, TRAIN, {})), encoding="utf-8")
    page.write_files(page.PROTECT, here.desk)
    said = {line: await here.follow(line) for line in _until_the_drill()}
    pods, agents = list(said.values())[-2:]
    _covered(pods, agents)
    await here.steps(_JOB, home)
    for line in _drill():
        await here.follow(line)
    assert (await here.saved(home))["kind"] == "STOP"
    await _resumed(here, home)

    announced = time.time()
    here.reclaim(announced + _LEAD_SECONDS)
    told = await here.saved(home)
    await here.decided(_JOB, "Suspended")
    await here.no_pods(_JOB)
    assert (told["kind"], told["annotated"]) == ("STOP", False)
    assert time.time() < announced + _LEAD_SECONDS


def _until_the_drill() -> list[str]:
    lines = list(page.commands(page.PROTECT))
    return lines[: lines.index(_drill()[0])]


def _drill() -> list[str]:
    lines = list(page.commands(page.PROTECT))
    [begin] = [number for number, line in enumerate(lines) if line.startswith(_DRILL)]
    return lines[begin:]


def _covered(pods: str, agents: str) -> None:
    """What the page has people look at: the volume in each of the job's pods, and a ready agent on their node."""
    of_pods = [line.split() for line in pods.splitlines()[1:]]
    assert {name for name, _, _ in of_pods} == {f"{_JOB}-launcher", f"{_JOB}-worker-0"}
    assert all(node == NODE and "job-supervisor" in volumes.split(",") for _, node, volumes in of_pods)
    assert [line.split() for line in agents.splitlines()[1:]] == [[NODE, "true"]]


async def _resumed(here: NodeWorld, home: Path) -> None:
    """The next run trains; what the drill has left is taken away."""
    (home / "checkpoint").unlink()
    (home / "step").unlink()

    async def second() -> bool:
        decided = await here.decided(_JOB, "Running")
        return int(decided["status"]["observed"]["run"]) > 1 and (home / "step").exists()

    await until(second, "the next run trains", seconds=120.0)
