"""A pass plans what has changed: a job that waits, and of which nothing has changed, is not looked at."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from supervisor.decide.plan import Plan, plan
from supervisor.domain.job import Phase, SupervisedJob
from tests.testkit.serving import LauncherPeer, PeerRefusal, Served, full_disk, serving
from tests.testkit.waiting import until

CROWD = 30
WINDOW_SECONDS = 0.5
"""Longer than a busy machine needs to fill a disk: a decision that is stored before is not tried again."""


class Plans(Counter[str]):
    """How often each job was planned.

    Attributes:
        due: The jobs that time alone will have planned again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.due: set[str] = set()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    counts = Plans()

    def counted(job: SupervisedJob, *arguments: Any) -> Plan:
        counts[job.name] += 1
        planned = plan(job, *arguments)
        (counts.due.discard if planned.wake_at is None else counts.due.add)(job.name)
        return planned

    monkeypatch.setattr("supervisor.control.loop.plan", counted)
    return counts


async def settled(launcher: LauncherPeer, plans: Plans) -> None:
    """All that was to be planned was: between two heartbeats nothing is, nor will it be as time passes."""
    while True:
        launcher.lines.discard_received()
        plans.clear()
        await launcher.lines.before_heartbeat()
        await launcher.lines.before_heartbeat()
        if not plans and not plans.due:
            return


@pytest_asyncio.fixture
async def served(tmp_path: Path, plans: Plans) -> AsyncIterator[Served]:
    """A supervisor whose plans are counted, with many jobs that have been planned to wait for hosts that nobody has."""
    assert not plans
    async with serving(tmp_path, window_seconds=WINDOW_SECONDS) as supervisor:
        for number in range(CROWD):
            hosts = [f"nowhere-{number}-{host}" for host in range(50)]
            last = await supervisor.peers.launcher(f"crowd-{number}", hosts)
        await settled(last, plans)
        yield supervisor


async def test_a_notice_has_the_job_planned_that_it_concerns(served: Served, plans: Plans) -> None:
    """From the notice to the order, to its withdrawal and back: none of those that wait is planned."""
    agents = await served.peers.agents(["n1", "n2", "n3"])
    await served.peers.running("other", ["n3"])
    launcher, _ = await served.peers.running("job", ["n1", "n2"], min_workers=1)
    await settled(launcher, plans)
    await agents["n2"].notices("n2")
    order = await launcher.lines.matching(exclusions=["n2"])
    await launcher.reports(applied=order["generation"])
    await agents["n2"].notices("n2", revision=2, withdrawn=True)
    back = await launcher.lines.matching(exclusions=[], workers=2)
    await launcher.reports(applied=back["generation"])
    await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
    assert plans.keys() == {"job"}


async def test_a_free_host_has_the_jobs_planned_that_are_given_it(served: Served, plans: Plans) -> None:
    launcher = await served.peers.launcher("waits", ["n1"])
    await settled(launcher, plans)
    await served.peers.agents(["n1"])
    await launcher.lines.matching(order="run", hosts=["n1"])
    assert plans.keys() == {"waits"}


async def test_time_alone_has_the_job_planned_whose_time_has_come(served: Served, plans: Plans) -> None:
    launcher = await served.peers.launcher("short", ["elsewhere"], max_wait_seconds=1.0)
    await launcher.lines.matching(order="end")
    assert plans.keys() == {"short"}


async def test_rank_zero_has_its_job_planned(served: Served, plans: Plans) -> None:
    """It comes and it goes; a stream of another rank has nobody planned."""
    await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"])
    await settled(launcher, plans)
    await served.peers.process(order["token"], "n2", 1)
    await launcher.lines.before_heartbeat()
    assert not plans
    await served.peers.process(order["token"], "n1", 0)
    await until(lambda: bool(plans))
    assert plans.keys() == {"job"}


async def test_what_could_not_be_stored_is_tried_again_for_its_job_alone(served: Served, plans: Plans) -> None:
    agents = await served.peers.agents(["n1", "n2"])
    launcher, _ = await served.peers.running("job", ["n1", "n2"], min_workers=1)
    await settled(launcher, plans)
    await agents["n2"].notices("n2")
    await until(lambda: served.job("job").decision.window_until is not None)
    await full_disk(served.store, full=True)
    await until(lambda: plans["job"] > 5)
    await full_disk(served.store, full=False)
    await launcher.lines.matching(exclusions=["n2"])
    assert plans.keys() == {"job"}


async def test_a_job_that_is_registered_again_is_planned_as_a_new_one(served: Served, plans: Plans) -> None:
    job = served.job("crowd-0")
    await served.store.forget_job(job.name, job.uid)
    plans.clear()
    launcher = await served.peers.launcher("crowd-0", ["n1"], instance="instance-2")
    await served.peers.agents(["n1"])
    assert (await launcher.lines.matching(order="run"))["hosts"] == ["n1"]
    assert await launcher.says(run=1, running=True) == PeerRefusal(200, None)
    assert plans.keys() == {"crowd-0"}
