"""The page of one decided group: what the leader knows of it, and what the record has once the leader has changed."""

from pathlib import Path
from urllib.parse import quote

import pytest

from supervisor.domain.ids import JobName
from supervisor.ingest.errors import MalformedError
from supervisor.observability.page.group_contents import GroupId, group_contents
from supervisor.observability.views import HistoryEntryView, HistoryView
from tests.supervisor.observability.page.console_world import UGLY, links_of, page_of, reclaimed, rows_of, until_seen
from tests.supervisor.observability.page.test_page_formatting import seen
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

_ID = GroupId(JobName("train"), 100.0)


def _entry(at: float, what: str, subject: str = "job/train", **fields: object) -> HistoryEntryView:
    return HistoryEntryView(at=at, subject=subject, what=what, text=f"{what}.", **fields)  # type: ignore[arg-type]


def _past(*entries: HistoryEntryView) -> HistoryView:
    return HistoryView(since=0.0, entries=list(entries))


_STOP = [
    _entry(40.0, "noticed", "node/n9", source="metadata"),
    _entry(99.0, "noticed", "node/n3", source="metadata"),
    _entry(99.5, "Running"),
    _entry(100.0, "Stopping", concerns=("node/n3", "node/n4", "pool/a/b/c")),
    _entry(103.0, "Checkpoint", run=1),
    _entry(104.0, "Run ended"),
    _entry(104.0, "Suspended"),
    _entry(150.0, "gone", "node/n3", source="metadata"),
    _entry(160.0, "noticed", "node/n3", source="metadata"),
    _entry(200.0, "Resuming"),
    _entry(210.0, "Running"),
    _entry(300.0, "Suspended"),
]


def test_the_record_alone_tells_the_course_of_a_stop() -> None:
    shown = group_contents(seen(), _ID, _past(*_STOP))
    assert (shown.group, shown.reason, shown.suspended_at, shown.resumed_at) == (None, "Stopping.", 104.0, 210.0)
    assert [(each.subject, each.noticed_at, each.ended_at) for each in shown.notices] == [("node/n3", 99.0, 150.0)]
    assert (shown.others, shown.pools) == (["node/n4"], ["a/b/c"])
    assert [each.at for each in shown.answers] == [103.0]
    assert [each.at for each in shown.entries] == [100.0, 103.0, 104.0, 104.0, 200.0, 210.0]


def test_another_stop_is_another_group() -> None:
    """A job that shrinks and is stopped a moment later has two groups, and the first is over with the second."""
    entries = [_entry(100.0, "Shrinking"), _entry(101.0, "Shrinking"), _entry(102.0, "Stopping"), _entry(103.0, "Gone")]
    assert [each.at for each in group_contents(seen(), _ID, _past(*entries)).entries] == [100.0, 101.0]
    second = group_contents(seen(), GroupId(JobName("train"), 102.0), _past(*entries))
    assert ([each.at for each in second.entries], second.resumed_at) == ([102.0, 103.0], 103.0)


def test_an_entry_of_another_job_or_instant_is_no_decision() -> None:
    other = _entry(100.0, "Stopping", "job/other")
    late = _entry(100.001, "Stopping")
    assert not group_contents(seen(), _ID, _past(other, late)).is_known
    assert group_contents(seen(), _ID, _past(_entry(100.000_001, "Stopping"))).is_known


@pytest.mark.parametrize("at", ["", "1", "1.", "x.1", "-1.0", "1e5", "1.1234567", "9" * 400 + ".0", "nan"])
async def test_an_address_without_an_instant_is_said_to_be_none(served: Served, at: str) -> None:
    with pytest.raises(MalformedError):
        GroupId.read(at, "train")
    if at:
        page = await page_of(served, f"/status/groups/{at}/train")
        assert (page.status, "No such decision" in page.seen) == (404, True)


async def test_a_decision_that_nobody_knows_is_said_to_be(served: Served) -> None:
    page = await until_seen(served, f"/status/groups/5.5/{quote(UGLY)}", "No such decision")
    assert (page.status, "<script>1" in page.text) == (404, False)


async def _stopped(served: Served) -> str:
    """A job of two hosts is stopped and saves; returns the address of the decision, as the overview has it."""
    agents = await served.peers.agents(["n1", "n2"])
    _, order = await served.peers.running("train", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", rank=0)
    await agents["n2"].notices("n2", left=60.0)
    await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
    await until(lambda: served.job("train").decision.phase == "Suspended")
    [link] = {link for link in links_of(await page_of(served, "/"), "/") if "/groups/" in link}
    return link


async def test_the_overview_and_the_job_lead_to_it(served: Served) -> None:
    link = await _stopped(served)
    assert link in links_of(await page_of(served, "/status/jobs/train"), "/status/jobs/train")
    page = await until_seen(served, link, "Suspended 2")
    for text in (
        "Decision about train",
        "stopped n2 will be reclaimed, says metadata; 1 host would remain (minimum 2): stopping.",
        "Checkpoint saved at step 41",
        "before the end",
        "Answers Rank 0 saved a checkpoint at step 41.",
        "s from the first notice on",
        "node n2 metadata none yet",
        "Steps lost unknown",
        "Over not, as far as is known",
    ):
        assert text in page.seen
    assert "/status/jobs/train" in links_of(page, link, "train")
    assert "/status/nodes/n2" in links_of(page, link, "node n2")


async def test_after_the_leader_the_record_has_it(tmp_path: Path) -> None:
    """And the page says what is missing then."""
    async with serving(tmp_path) as served:
        link = await _stopped(served)
        await until_seen(served, link, "Suspended 2")
    async with serving(tmp_path) as served:
        page = await until_seen(served, link, "Answers Rank 0 saved")
        assert page.status == 200
        for text in (
            "leads no more, or has decided 50 others since",
            "Stopping n2 will be reclaimed, says metadata",
            "Answers Rank 0 saved a checkpoint at step 41.",
            "from the first notice of the hour before on",
            "node n2 metadata",
        ):
            assert text in page.seen
        assert "Steps lost" not in page.seen


async def test_a_group_that_shrank_says_so(served: Served) -> None:
    await reclaimed(served)
    [link] = {link for link in links_of(await page_of(served, "/"), "/") if "/groups/" in link}
    page = await until_seen(served, link, "job train 1 Shrinking")
    assert "shrunk n3 will be reclaimed" in page.seen
    assert "Checkpoint not needed" in page.seen
    assert rows_of(page)[0] == "Hosts n3"
