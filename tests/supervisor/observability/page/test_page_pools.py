"""The pages of capacity pools: their nodes now, and how often the cloud reclaimed there."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.ledger import HeldOn
from supervisor.observability.page.past import RecordRead
from supervisor.observability.page.pool_contents import POOLS, PoolCount, PoolRow, pool_contents, pool_rows
from supervisor.observability.page.rendering import PageRenderer
from supervisor.observability.page.tables import TableForm, listed
from supervisor.observability.record.pool_counts import DAY, HOUR, PoolDays
from supervisor.observability.views import HistoryEntryView, HistoryView
from tests.supervisor.observability.page.console_world import (
    POOL,
    UGLY,
    links_of,
    page_of,
    reclaimed,
    rows_of,
    until_seen,
)
from tests.supervisor.observability.page.page_world import VIEWING
from tests.supervisor.observability.page.test_page_formatting import seen
from tests.testkit.serving import Served, serving

_TODAY = 20_000 * DAY
_NOW = _TODAY + 10 * HOUR


def test_pools_have_the_notices_of_two_days_and_of_a_month() -> None:
    counts = {
        (_TODAY, "a/b/c", "noticed"): 2,
        (_TODAY - 2 * DAY, "a/b/c", "noticed"): 4,
        (_TODAY - 29 * DAY, "a/b/c", "noticed"): 8,
        (_TODAY, "a/b/c", "gone"): 1,
        (_TODAY, "a/b/c", "withdrawn"): 1,
        (_TODAY, "x/y/z", "noticed"): 1,
    }
    held = {
        HeldOn(cloud="a", zone="b", instance_type="c"): 7 * DAY,
        HeldOn(zone="b", instance_type="c"): DAY,
        HeldOn(cloud="a", instance_type="c"): DAY,
        HeldOn(): 5 * DAY,
    }
    snapshot = replace(seen(), now=_NOW)
    rows = {row.pool: row for row in pool_rows(snapshot, RecordRead(counts=counts, held=held))}
    assert rows.keys() == {"a/b/c", "?/b/c", "x/y/z"}
    assert rows["a/b/c"].recent == PoolCount(noticed=2, gone=1, spared=1)
    assert rows["a/b/c"].month == PoolCount(noticed=14, gone=1, spared=1)
    assert (rows["a/b/c"].rate, rows["x/y/z"].rate) == (2.0, None)
    ordered = listed(list(rows.values()), TableForm.read({"sort": "recent", "order": "down"}, POOLS), POOLS)
    assert [row.pool for row in ordered.rows] == ["a/b/c", "x/y/z", "?/b/c"]


def test_a_rate_of_few_notices_says_so_and_of_less_than_a_day_there_is_none() -> None:
    def of(noticed: int, days: float) -> tuple[PoolRow, str]:
        counts = {(_TODAY, "a/b/c", "noticed"): noticed}
        held = {HeldOn(cloud="a", zone="b", instance_type="c"): days * DAY}
        read, now = RecordRead(counts=counts, held=held), replace(seen(), now=_NOW)
        [row] = pool_rows(now, read)
        shown = pool_contents(now, "a/b/c", read)
        return row, PageRenderer().render("pool.html", root="../", session=VIEWING, shown=shown, unread="")

    row, text = of(2, 4.0)
    assert (row.rate, row.is_rough) == (0.5, True)
    assert "one notice for each 2.0 days of a worker; of so few notices, it is a rough figure." in text
    row, text = of(10, 4.0)
    assert (row.rate, row.is_rough, "rough" in text) == (2.5, False, False)
    row, text = of(1, 0.9)
    assert (row.rate, "too little for a rate" in text) == (None, True)
    row, text = of(0, 4.0)
    assert (row.rate, "No notice came in 4.0 days of a worker." in text) == (0.0, True)


def test_the_chart_has_thirty_days_and_the_highest_is_the_most() -> None:
    counts = {(_TODAY + HOUR, "p", "noticed"): 1, (_TODAY - 3 * DAY, "p", "noticed"): 4, (_TODAY, "q", "noticed"): 9}
    days = pool_contents(replace(seen(), now=_NOW), "p", RecordRead(counts=counts)).days
    assert (len(days), days[0].begins, days[-1].begins) == (30, _TODAY - 29 * DAY, _TODAY)
    assert {day.begins: day.height for day in days if day.height} == {_TODAY - 3 * DAY: 100.0, _TODAY: 25.0}


def test_the_time_from_notice_to_gone_leaves_people_out() -> None:
    def entry(at: float, node: str, what: str, source: str = "metadata") -> HistoryEntryView:
        return HistoryEntryView(at=at, subject=f"node/{node}", what=what, text="", source=source)

    entries = [
        entry(1.0, "a", "noticed"),
        entry(2.0, "b", "noticed"),
        entry(3.0, "c", "noticed", "simulated"),
        entry(31.0, "a", "gone"),
        entry(33.0, "c", "gone", "simulated"),
        entry(92.0, "b", "gone"),
        entry(93.0, "earlier", "gone"),
    ]
    shown = pool_contents(seen(), "p", RecordRead(notices=HistoryView(since=0.0, entries=entries)))
    assert (shown.seconds, shown.median_seconds) == ([30.0, 90.0], 60.0)
    assert [(each.subject, each.seconds) for each in shown.latest] == [
        ("node/earlier", None),
        ("node/b", 90.0),
        ("node/a", 30.0),
    ]


def test_hours_that_are_over_are_read_once() -> None:
    """What is not settled yet is read each time. The hours of the last days are told apart."""
    asked = list[float]()
    happened = [
        (day + after, "p", what)
        for day in (_TODAY - back * DAY for back in range(30))
        for after, what in ((HOUR, "noticed"), (9 * HOUR, "noticed"), (DAY - 1.0, "gone"))
    ]

    def read(since: float, until: float) -> list[tuple[float, str, str]]:
        asked.append(since)
        return [each for each in happened if since <= each[0] < until]

    days = PoolDays()
    first = days.counted(read, _NOW)
    assert asked == [_TODAY - back * DAY for back in range(29, -1, -1)]
    assert (first[_TODAY - 3 * DAY, "p", "noticed"], first[_TODAY - 2 * DAY + HOUR, "p", "noticed"]) == (2, 1)
    assert sum(first.values()) == 90
    happened.append((_TODAY + 9 * HOUR + 1, "p", "noticed"))  # Written late, of an hour that is not settled.
    assert days.counted(read, _NOW)[_TODAY + 9 * HOUR, "p", "noticed"] == 2
    assert asked[30:] == [_TODAY + 8 * HOUR]
    days.counted(read, _TODAY + DAY + HOUR)
    assert asked[31:] == [_TODAY + 8 * HOUR, _TODAY + DAY]
    assert sum(days.counted(read, _TODAY + DAY + HOUR).values()) == 91 - 3  # The first day is not asked for any more.
    assert asked[33:] == [_TODAY + 23 * HOUR, _TODAY + DAY]


def test_the_days_of_a_month_are_counted_ahead() -> None:
    days = PoolDays()
    counted = list[float]()
    while (day := days.missing(_NOW)) is not None:
        days.count(lambda _since, _until: (), day, _NOW)
        counted.append(day)
    assert counted == [_TODAY - back * DAY for back in range(29, -1, -1)]
    assert days.missing(_NOW + HOUR - 1) is None  # No further hour is settled yet.
    assert days.missing(_NOW + HOUR) == _TODAY


async def test_pools_lead_to_each_pool_and_to_its_nodes_and_jobs(served: Served) -> None:
    await reclaimed(served)
    page = await until_seen(served, "/status/pools", f"{POOL} 3 spot 1 1 1 0")
    [link] = links_of(page, "/status/pools", POOL)
    page = await until_seen(served, link, "train 1 Shrinking")
    for text in (
        f"Capacity pool {POOL}",
        "3 nodes are connected, 1 with a notice. There was 1 notice in the last 48 hours, and 1 in the last 30 days.",
        "train n1 , n2 , n3",
        "n3 connected spot",
        "Its latest notices",
        "How long it takes from a notice to the end of a node is not known.",
    ):
        assert text in page.seen
    assert page.text.count('<rect class="noticed"') == 1
    assert "/status/nodes/n3" in links_of(page, link, "n3")
    assert "/status/jobs/train" in links_of(page, link, "train")


async def test_a_pool_of_an_unknown_cloud_has_a_page(served: Served) -> None:
    """Its name has a question mark: of an empty part and its slash, proxies would make one slash of two."""
    await served.peers.agent("n1", machine=wire.Machine(zone="z", instance_type=UGLY))
    page = await page_of(served, "/status/pools")
    assert "<script>1" not in page.text
    [link] = links_of(page, "/status/pools", f"?/z/{UGLY.replace('/', '%2F')}")
    assert link.startswith("/status/pools/%3F/z/")
    shown = await page_of(served, link)
    assert (shown.status, "1 node is connected" in shown.seen, "<script>1" in shown.text) == (200, True, False)


@pytest.mark.parametrize(
    ("zone", "instance_type", "name"),
    [
        ("a/b", "c d", "x/a%2Fb/c%20d"),
        ("..", "?", "x/%2E%2E/%3F"),
        ("a%2Fb", "é", "x/a%252Fb/é"),
        ("%" * 253, "t", f"x/{'%25' * 253}/t"),
    ],
)
async def test_a_pool_of_whatever_name_has_a_page_and_a_history(
    served: Served, zone: str, instance_type: str, name: str
) -> None:
    """Agents name zones and types. What they name leads to no other pool, and not nowhere."""
    agent = await served.peers.agent("n1", machine=wire.Machine(cloud="x", zone=zone, instance_type=instance_type))
    await agent.notices("n1", left=60.0)
    [link] = [each for each in links_of(await page_of(served, "/status/pools"), "/status/pools") if "/pools/x" in each]
    page = await until_seen(served, link, "1 node is connected, 1 with a notice")
    assert (page.status, "1 notice in the last 48 hours" in page.seen) == (200, True)
    asked = urlencode({"kind": "pool", "name": name})
    assert "node n1" in (await page_of(served, f"/status/history?{asked}")).seen


async def test_a_cloud_may_be_left_out_of_the_name_of_a_pool(served: Served) -> None:
    """In the address of its page and in the form of the history, as in the API."""
    agent = await served.peers.agent("n1", machine=wire.Machine(zone="z", instance_type="t"))
    await agent.notices("n1", left=60.0)
    await until_seen(served, "/status/pools//z/t", "1 notice in the last 48 hours")
    for name in ("/z/t", "?/z/t"):
        page = await page_of(served, f"/status/history?{urlencode({'kind': 'pool', 'name': name})}")
        assert ("node n1" in page.seen, 'value="?/z/t"' in page.text) == (True, True)


@pytest.mark.parametrize("name", ["z", "a/b/c/d", "a//c"])
async def test_what_names_no_pool_is_said_to_be_none(served: Served, name: str) -> None:
    page = await page_of(served, f"/status/pools/{name}")
    assert (page.status, "A capacity pool is named CLOUD/ZONE/TYPE." in page.seen) == (404, True)
    page = await page_of(served, f"/status/history?{urlencode({'kind': 'pool', 'name': name})}")
    assert (page.status, "A capacity pool is named CLOUD/ZONE/TYPE." in page.seen) == (400, True)


async def test_a_pool_that_nobody_knows_is_said_to_be(served: Served) -> None:
    page = await until_seen(served, "/status/pools/a/b/c", "No such capacity pool")
    assert page.status == 404


async def test_a_pool_of_the_past_is_known(tmp_path: Path) -> None:
    """Its nodes are forgotten, and the record is not."""
    async with serving(tmp_path) as served:
        await reclaimed(served)
        await until_seen(served, "/status/pools", f"{POOL} 3 spot 1 1")
    async with serving(tmp_path) as served:
        page = await until_seen(served, "/status/pools?shown=reclaimed", f"{POOL} 0 unknown 0 1 1 0")
        assert len(rows_of(page)) == 1
        page = await until_seen(served, f"/status/pools/{POOL}", "No node of it has an agent now.")
        assert page.status == 200
