"""The page of the record: what it shows of what was asked for, page by page."""

import html
import re
from pathlib import Path
from urllib.parse import urlencode, urljoin

import pytest

from supervisor.observability.page.history_form import MAX_LETTERS
from tests.supervisor.observability.page.page_world import NODES, PageAnswer, get
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

_PATH = "/status/history"
_NO_RUN = "\N{EN DASH}"
_ROW = re.compile(r'<tr role="row">\n<th role="rowheader".*?</tr>', re.DOTALL)


async def _page(served: Served, **fields: str) -> PageAnswer:
    return await get(served.peers, f"{_PATH}?{urlencode(fields)}", token=served.peers.tokens.viewer())


def _rows(page: PageAnswer) -> list[str]:
    """Returns what a person reads in each row, from the top."""
    return [html.unescape(" ".join(re.sub(r"<[^>]*>", " ", row).split())) for row in _ROW.findall(page.text)]


async def _reclaim(served: Served) -> PageAnswer:
    """Two jobs, of which one leaves a host; returns the page that shows it."""
    agents = await served.peers.agents([*NODES, "n4"])
    await served.peers.running("train", NODES, min_workers=2)
    await served.peers.running("other", ["n4"], min_workers=1)
    await agents["n3"].notices("n3", left=60.0)

    async def shown() -> bool:
        seen = (await _page(served)).seen
        return "job train 1 Shrinking" in seen and "job other 1 Running" in seen

    await until(shown, "the page has the decision")
    return await _page(served)


async def test_it_tells_what_happened_the_latest_first(served: Served) -> None:
    page = await _reclaim(served)
    rows = _rows(page)
    [noticed] = [at for at, row in enumerate(rows) if f"node n3 {_NO_RUN} noticed Node n3 will be reclaimed" in row]
    [shrinking] = [at for at, row in enumerate(rows) if "job train 1 Shrinking n3 will be reclaimed" in row]
    assert shrinking < noticed
    assert "The record begins at 2" in page.seen
    assert 'http-equiv="refresh"' not in page.text
    assert "data-poll" not in page.text


@pytest.mark.parametrize(
    ("fields", "has", "lacks"),
    [
        ({"kind": "job", "name": "other"}, "job other", "job train"),
        ({"kind": "job", "name": "train"}, f"node n3 {_NO_RUN} noticed", "job other"),
        ({"kind": "node", "name": " n3 "}, "job train 1 Shrinking", "job train 1 Run began"),
        ({"source": "metadata"}, "node n3", "job "),
        ({"kind": "pool", "name": "aliyun/h/big"}, "", "n3"),
        ({"span": "1h", "drills": "no"}, "node n3", "nothing"),
    ],
)
async def test_it_shows_what_the_form_asks_for(served: Served, fields: dict[str, str], has: str, lacks: str) -> None:
    """And the form keeps it."""
    await _reclaim(served)
    page = await _page(served, **fields)
    rows = "\n".join(_rows(page))
    assert has in rows
    assert lacks not in rows
    for value in fields.values():
        assert f'value="{value.strip()}"' in page.text
    assert ("Nothing of that is recorded." in page.seen) is (not rows)


async def test_its_links_lead_to_all_of_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages join without a gap, and each keeps what was asked for; a subject leads to its own history."""
    first = await _reclaim(served)
    [node] = {html.unescape(link) for link in re.findall(r'href="([^"]*)">node n3</a>', first.text)}
    whole = [row for row in _rows(first) if "job train" in row]
    monkeypatch.setattr("supervisor.observability.page.history_form.MAX_ROWS", 2)
    viewer, address, rows = served.peers.tokens.viewer(), f"{_PATH}?kind=job&name=train", list[str]()
    while address:
        page = await get(served.peers, address, token=viewer)
        rows += _rows(page)
        links = re.findall(r'<a href="([^"]*)">(Earlier|The latest)</a>', page.text)
        assert ("The latest" in dict(map(reversed, links))) is ("before" in address)
        [*earlier] = (link for link, name in links if name == "Earlier")
        address = urljoin(_PATH, html.unescape(earlier[0])) if earlier else ""
    assert [row for row in rows if "job train" in row] == whole
    text = (await get(served.peers, urljoin(_PATH, node), token=viewer)).text
    assert '<option value="node" selected>' in text
    assert 'value="n3"' in text


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "cluster"},
        {"span": "1y"},
        {"before": "x"},
        {"name": "x" * (MAX_LETTERS + 1)},
        {"before": "0x1p+99999-1"},
    ],
)
async def test_an_address_that_asks_for_nothing_is_answered_with_the_form(
    served: Served, fields: dict[str, str]
) -> None:
    page = await _page(served, **fields)
    assert (page.status, 'role="alert"' in page.text, "Of the" in page.seen) == (400, True, True)


async def test_what_is_asked_for_is_never_markup(served: Served) -> None:
    await _reclaim(served)
    page = await _page(served, name='"><script>1</script>', source="<b>")
    assert page.status == 200
    assert "<script>1" not in page.text
    assert "<b>" not in page.text


async def test_a_record_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    async with serving(tmp_path, record_url_file=tmp_path / "nothing") as served:
        page = await _page(served)
        assert (page.status, "The record cannot be read now" in page.seen) == (503, True)


async def test_nobody_sees_it_without_a_token(served: Served) -> None:
    await _reclaim(served)
    page = await get(served.peers, _PATH)
    assert (page.status, "n3" in page.text) == (401, False)


async def test_the_other_pages_lead_to_it(served: Served) -> None:
    await _reclaim(served)
    viewer = served.peers.tokens.viewer()
    for path, has in (("/", "job other"), ("/status/jobs/train", "job train 1 Shrinking")):
        page = await get(served.peers, path, token=viewer)
        link = re.findall(r'href="([^"]*status/history[^"]*)"', page.text)[-1]
        assert has in (await get(served.peers, urljoin(path, html.unescape(link)), token=viewer)).seen
