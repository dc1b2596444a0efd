"""Agents announce notices of three classes, and each is acted on in its own time."""

from pathlib import Path

import pytest
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeClass
from tests.testkit.serving import Served, noticed, serving
from tests.testkit.waiting import until

SCHEDULED, HINT = wire.NOTICE_CLASS_SCHEDULED, wire.NOTICE_CLASS_HINT
NOTICED = wire.SOURCE_STATE_NOTICED
DAY = 86400.0


def _classes(served: Served) -> dict[str, tuple[NoticeClass, bool]]:
    notices = served.store.snapshot().notices.values()
    return {each.subject.name: (each.notice_class, each.cancellable) for each in notices}


async def test_the_class_of_a_report_is_stored(tmp_path: Path) -> None:
    """A report of an earlier agent, or of one that knows more classes, is sudden."""
    async with serving(tmp_path) as served:
        agents = await served.peers.agents(["n1", "n2", "n3", "n4"])
        await agents["n1"].notices("n1")
        await agents["n2"].notices("n2", notice_class=SCHEDULED, cancellable=True, left=DAY)
        await agents["n3"].notices("n3", notice_class=HINT, left=None)
        await agents["n4"].notices("n4", notice_class=17)
        assert _classes(served) == {
            "n1": (NoticeClass.SUDDEN, False),
            "n2": (NoticeClass.SCHEDULED, True),
            "n3": (NoticeClass.HINT, False),
            "n4": (NoticeClass.SUDDEN, False),
        }


async def test_the_class_survives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1")
        await agent.notices("n1", notice_class=HINT, left=None)
    async with serving(tmp_path) as served:
        assert _classes(served) == {"n1": (NoticeClass.HINT, False)}


async def test_a_hint_asks_for_a_checkpoint_and_the_run_goes_on(tmp_path: Path) -> None:
    """Every process is asked, and the host stays in use."""
    async with serving(tmp_path) as served:
        agents = await served.peers.agents(["n1", "n2"])
        _, order = await served.peers.running("job", ["n1", "n2"])
        ranks = [await served.peers.process(order["token"], f"n{rank + 1}", rank) for rank in range(2)]
        await agents["n2"].notices("n2", notice_class=HINT, left=None)
        lines = [await each.lines.matching(directive="CHECKPOINT") for each in ranks]
        assert [line["generation"] for line in lines] == [served.job("job").decision.generation] * 2
        assert [line["notice"] for line in lines] == [None, None]
        assert served.job("job").decision.phase is Phase.RUNNING
        assert not served.job("job").decision.exclusions


async def test_a_scheduled_notice_is_acted_on_when_it_is_near(tmp_path: Path) -> None:
    """Nothing but time makes it so."""
    async with serving(tmp_path, scheduled_horizon_seconds=60.0) as served:
        agents = await served.peers.agents(["n1", "n2"])
        _, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
        process = await served.peers.process(order["token"], "n2", 1)
        # Until it is near, there is time enough to tell a process on a busy machine.
        await agents["n2"].notices("n2", notice_class=SCHEDULED, left=65.0)
        asked = await process.lines.matching(directive="CHECKPOINT")
        assert asked["reason"] == (
            "n2 is to be reclaimed later, according to metadata: saving a checkpoint and continuing."
        )
        told = await process.lines.matching(directive="LEAVE")
        assert told["notice"]["host"] == "n2"
        await until(lambda: served.job("job").decision.exclusions == {"n2"})


@pytest.mark.parametrize("notice_class", [SCHEDULED, HINT])
async def test_a_run_starts_on_a_host_that_goes_much_later_or_perhaps(
    tmp_path: Path, notice_class: wire.NoticeClass.ValueType
) -> None:
    """Its agent announces something, but nothing that keeps the host from use."""
    async with serving(tmp_path) as served:
        left = DAY if notice_class == SCHEDULED else None
        report = noticed("n1", notice_class=notice_class, left=left)
        await served.peers.agent("n1", notices=[report], state=NOTICED)
        launcher = await served.peers.launcher("job", ["n1"])
        order = await launcher.lines.matching(order="run")
        assert order["hosts"] == ["n1"]


async def test_no_run_starts_on_a_host_that_goes_soon(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        soon = noticed("n1", notice_class=SCHEDULED, left=900.0)
        await served.peers.agent("n1", notices=[soon], state=NOTICED)
        launcher = await served.peers.launcher("job", ["n1", "n2"], min_workers=1)
        await served.peers.agent("n2")
        order = await launcher.lines.matching(order="run")
        assert order["hosts"] == ["n2"]
