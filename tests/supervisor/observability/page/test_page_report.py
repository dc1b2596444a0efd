"""The page of the ledger: where hours went, job by job, account by account and over time."""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest

from supervisor.domain.ids import Host, JobName
from supervisor.domain.ledger import Account
from supervisor.domain.stays import HostStay
from supervisor.observability.page.history_form import MAX_LETTERS
from supervisor.observability.page.report_contents import ReportContents, SpentTime, report_contents
from supervisor.observability.views import CapacityView, HeldView, LedgerJobView, LedgerView
from tests.supervisor.observability.page.page_world import NODES, PageAnswer, get
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

HOUR = 3600.0
DAY = 24 * HOUR
_PATH = "/status/report"


def _job(name: str, *machines: HeldView, **hours: float) -> LedgerJobView:
    seconds = {account: spent * HOUR for account, spent in hours.items()}
    return LedgerJobView(job=JobName(name), worker_seconds=seconds, machines=list(machines))


def _shown(
    *jobs: LedgerJobView, job: str = "", hourly: Mapping[float, Mapping[str, float]] | None = None, counted: float = DAY
) -> ReportContents:
    found = LedgerView(since=0.0, until=DAY, counted_seconds=counted, jobs=list(jobs))
    return report_contents(SpentTime(found, hourly or {}), job, 6 * HOUR)


def test_the_parts_of_a_bar_are_what_was_wanted() -> None:
    """What a queue or a person held back is no part of it, and is listed beside it."""
    shown = _shown(_job("a", training=4.0, saving=1.0, unmeasured=2.0, missing=2.0, waiting=1.0, queued=90.0))
    [row] = shown.jobs
    assert [(part.key, part.at, part.length) for part in row.bar] == [
        ("trained", 0.0, 40.0),
        ("unmeasured", 40.0, 20.0),
        ("idle", 60.0, 10.0),
        ("lacked", 70.0, 30.0),
    ]
    shares = {each.account: each.share for each in shown.accounts}
    assert shares.pop(Account.QUEUED) is None
    assert sum(share or 0.0 for share in shares.values()) == pytest.approx(1.0)


def test_every_account_has_a_meaning_and_a_place_in_the_bars() -> None:
    shown = _shown(_job("a", **{account.value: 1.0 for account in Account}))
    assert {each.account for each in shown.accounts} == set(Account)
    assert sum(part.length for part in shown.jobs[0].bar) == pytest.approx(100.0)


def test_the_largest_jobs_are_first_and_the_others_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.observability.page.report_contents.MAX_ROWS", 2)
    shown = _shown(_job("small", training=1.0), _job("large", training=3.0), _job("b", missing=2.0), _job("idle"))
    assert [(row.job, row.time.wanted / HOUR) for row in shown.jobs] == [("large", 3.0), ("b", 2.0), ("", 1.0)]
    assert shown.more == 2
    assert shown.total.wanted == 6 * HOUR


def test_one_job_is_shown_alone() -> None:
    shown = _shown(_job("a", training=1.0), _job("b", training=2.0), job="a")
    assert [row.job for row in shown.jobs] == ["a"]
    assert shown.total.wanted == HOUR


def test_columns_are_of_the_most_that_was_wanted_and_have_no_gap() -> None:
    hourly = {
        5 * HOUR: {"training": 2 * HOUR},
        4 * HOUR: {"training": 1 * HOUR, "missing": 1 * HOUR},
        18 * HOUR: {"training": 8 * HOUR},
    }
    columns = _shown(hourly=hourly).columns
    assert [column.begins / HOUR for column in columns] == [0.0, 6.0, 12.0, 18.0]
    assert [[(part.key, part.length) for part in column.bar] for column in columns] == [
        [("trained", 37.5), ("lacked", 12.5)],
        [],
        [],
        [("trained", 100.0)],
    ]


def test_gpus_that_are_not_known_of_some_workers_make_no_sum() -> None:
    known = HeldView(cloud="c", zone="z", instance_type="t", price_class="spot", gpus=2.0, worker_seconds=HOUR)
    unknown = HeldView(worker_seconds=3 * HOUR)
    mixed = HeldView(cloud="c", zone="z", instance_type="u", gpus=1.0, worker_seconds=HOUR)
    without = HeldView(cloud="c", zone="z", instance_type="u", worker_seconds=HOUR)
    shown = _shown(_job("a", known, unknown), _job("b", known, mixed, without))
    assert [(row.pool, row.worker_seconds / HOUR, row.gpu_seconds) for row in shown.machines] == [
        ("", 3.0, None),
        ("c/z/t", 2.0, 4 * HOUR),
        ("c/z/u", 2.0, None),
    ]


def test_a_machine_of_an_unknown_cloud_has_a_pool() -> None:
    shown = _shown(_job("a", HeldView(zone="z", instance_type="t", worker_seconds=HOUR)))
    assert [row.pool for row in shown.machines] == ["?/z/t"]


@pytest.mark.parametrize(("counted", "uncounted"), [(DAY, None), (DAY - 60.0, None), (DAY - 61.0, 61.0)])
def test_a_time_that_nobody_has_counted_is_said(counted: float, uncounted: float | None) -> None:
    assert _shown(counted=counted).uncounted == uncounted


def test_a_host_that_was_noticed_comes_first_and_its_bar_shows_when() -> None:
    """A host that came back after it was gone has one row."""
    stays = [
        HostStay(host=Host("plain"), begins=-HOUR),
        HostStay(host=Host("spot"), begins=2.4 * HOUR, ends=7.2 * HOUR, noticed=4.8 * HOUR, gone=True),
        HostStay(host=Host("spot"), begins=12 * HOUR, noticed=24 * HOUR - 1e-9),
        HostStay(host=Host("late"), begins=12 * HOUR, ends=12 * HOUR),
        # One notice, over two supervisors that led.
        HostStay(host=Host("zeta"), begins=1 * HOUR, ends=20 * HOUR, noticed=19 * HOUR, deadline=25 * HOUR),
        HostStay(host=Host("zeta"), begins=20 * HOUR, noticed=19 * HOUR, deadline=25 * HOUR),
    ]
    seen = CapacityView(job=JobName("a"), since=0.0, until=DAY, spans=[], stays=stays)
    found = LedgerView(since=0.0, until=DAY, counted_seconds=DAY, jobs=[])
    shown = report_contents(SpentTime(found, {}, seen), "a", HOUR)
    assert [(row.host, row.seconds / HOUR, row.notices, row.gone) for row in shown.hosts] == [
        ("spot", pytest.approx(16.8), 2, 1),
        ("zeta", 23.0, 1, 0),
        ("late", 0.0, 0, 0),
        ("plain", 24.0, 0, 0),
    ]
    drawn = [(part.key, round(part.at, 3), round(part.length, 3)) for part in shown.hosts[0].bar if part.length > 0.001]
    assert drawn == [("there", 10.0, 10.0), ("noticed", 20.0, 10.0), ("there", 50.0, 50.0)]
    assert (shown.hosts[2].bar, shown.more_hosts, shown.hosts_cut) == ([], 0, False)


async def _page(served: Served, **fields: str) -> PageAnswer:
    return await get(served.peers, f"{_PATH}?{urlencode(fields)}", token=served.peers.tokens.viewer())


async def test_it_tells_where_the_hours_of_the_jobs_went(served: Served) -> None:
    await served.peers.agents([*NODES, "n4"])
    await served.peers.running("train", NODES, max_workers=4, requested_workers=4)
    await served.peers.running("other", ["n4"], min_workers=1)

    async def counted() -> bool:
        return "unmeasured ran, and no process said what it did" in (await _page(served)).seen

    await until(counted, "the page has the ledger")
    page = await _page(served)
    assert "In the last 7 days, jobs wanted" in page.seen
    assert "no supervisor has counted" in page.seen
    assert 'aria-current="page">Where hours went' in page.text
    [link] = {html.unescape(each) for each in re.findall(r'href="([^"]*)">train</a>', page.text)}
    alone = await get(served.peers, f"/status/{link.rpartition('status/')[2]}", token=served.peers.tokens.viewer())
    assert 'value="train"' in alone.text
    assert "missing was asked for and not there" in alone.seen
    assert "job-supervisor report train" in alone.seen
    assert re.search(r"n1 \d+ s 0 0 n2 \d+ s 0 0 n3", alone.seen)


@pytest.mark.parametrize("fields", [{"span": "1y"}, {"job": "x" * (MAX_LETTERS + 1)}])
async def test_an_address_that_asks_for_nothing_is_answered_with_the_form(
    served: Served, fields: dict[str, str]
) -> None:
    page = await _page(served, **fields)
    assert (page.status, 'role="alert"' in page.text, "Of the job" in page.seen) == (400, True, True)


async def test_a_job_that_nobody_knows_wanted_nothing(served: Served) -> None:
    page = await _page(served, job='"><script>1</script>', span="24h")
    assert (page.status, "In the last 24 hours, no job wanted workers." in page.seen) == (200, True)
    assert "<script>1" not in page.text
    page = await _page(served, job="x; reboot #")
    assert "job-supervisor report 'x; reboot #' --since 7d" in page.seen


async def test_a_ledger_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    async with serving(tmp_path, record_url_file=tmp_path / "nothing") as served:
        page = await _page(served)
        assert (page.status, "The ledger cannot be read now" in page.seen) == (503, True)


async def test_nobody_without_a_session_sees_it(served: Served) -> None:
    page = await get(served.peers, _PATH)
    assert (page.status, "Viewer token" in page.seen) == (401, True)
