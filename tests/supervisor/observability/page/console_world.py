"""Supervisors whose pages have something to show, and what a person reads on them."""

import html
import re
from typing import Any
from urllib.parse import urljoin

from reclaim.v1 import reclaim_pb2 as wire

from tests.supervisor.observability.page.page_world import PageAnswer, get
from tests.testkit.serving import Served
from tests.testkit.waiting import until

_ROW = re.compile(r'<tr role="row">\s*<th role="rowheader".*?</tr>', re.DOTALL)
BIG = wire.Machine(cloud="aliyun", zone="h", instance_type="gn7", price_class=wire.PRICE_CLASS_SPOT)
POOL = "aliyun/h/gn7"
UGLY = '"><script>1</script>'


async def page_of(served: Served, path: str) -> PageAnswer:
    return await get(served.peers, path, token=served.peers.tokens.viewer())


def rows_of(page: PageAnswer) -> list[str]:
    """Returns what a person reads in each row, from the top."""
    return [seen_in(row) for row in _ROW.findall(page.text)]


def seen_in(markup: str) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", markup).split()))


def links_of(page: PageAnswer, path: str, text: str | None = None) -> list[str]:
    """Returns where links lead from a path, all or those with that text."""
    found = re.findall(r'<a href="([^"]*)"[^>]*>(.*?)</a>', page.text, re.DOTALL)
    return [urljoin(path, html.unescape(link)) for link, shown in found if text in (None, seen_in(shown))]


async def reclaimed(served: Served, **launcher: Any) -> None:
    """The job `train` on n1 to n3 of one pool loses n3 and goes on; an operator hears of it."""
    agents = {node: await served.peers.agent(node, machine=BIG) for node in ("n1", "n2", "n3")}
    await served.peers.running("train", ["n1", "n2", "n3"], **{"min_workers": 2, **launcher})
    await agents["n3"].notices("n3", left=60.0)
    await until(lambda: served.job("train").decision.exclusions, "n3 is left out")


async def until_seen(served: Served, path: str, text: str) -> PageAnswer:
    """Waits until a page shows a text, which the record may have a moment later."""

    async def shown() -> PageAnswer | None:
        page = await page_of(served, path)
        return page if text in page.seen else None

    found = await until(shown, f"{path} shows {text!r}")
    assert isinstance(found, PageAnswer)
    return found
