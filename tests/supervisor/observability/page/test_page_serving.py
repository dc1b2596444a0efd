"""The status page shows jobs and notices, escapes everything, and cannot disturb decisions."""

import asyncio
import re
import threading
from pathlib import Path

import pytest

from supervisor.observability.page import endpoints, rendering
from supervisor.observability.page.contents import PageContents, overview
from supervisor.observability.page.rendering import NAVIGATION
from supervisor.observability.status_view import StatusSnapshot
from tests.supervisor.observability.page.page_world import NODES, get, stream, viewing
from tests.testkit.serving import PeerRefusal, Served, serving
from tests.testkit.waiting import PATIENCE, until

BRAKE = '<img/src=x/onerror="alert(1)">'


async def reclaimed(served: Served) -> None:
    """A job of three loses one, which goes by a name that is none."""
    nodes = [*NODES[:2], BRAKE]
    agents = await served.peers.agents(nodes)
    await served.peers.running("train", nodes, min_workers=2)
    await agents[BRAKE].notices(BRAKE, left=60.0)
    await until(lambda: served.job("train").decision.exclusions)


async def test_it_shows_what_is_under_way_and_why(served: Served) -> None:
    """Notice, job with its sentence, the group, and who would not be reached."""
    await reclaimed(served)
    seen = (await viewing(served)).seen
    assert served.job("train").decision.reason in seen
    for text in ("1 reclaim under way", f"node {BRAKE}", "2 of 3 (min 2)", "shrunk", "2 without a stream"):
        assert text in seen


async def test_nodes_that_share_a_machine_uid_are_named(served: Served) -> None:
    for node in ("n1", "n2"):
        await served.peers.agent(node, node_uid="one-uid")
    assert "n1, n2 share a machine uid" in (await viewing(served)).seen


async def test_names_are_never_markup(served: Served) -> None:
    await reclaimed(served)
    page = (await viewing(served)).text
    looking = await stream(served.peers, served.peers.tokens.viewer())
    for text in (page, await looking.showing("onerror")):
        assert "<img" not in text
        assert "&lt;img/src=x/onerror=&#34;alert(1)&#34;&gt;" in text


@pytest.mark.parametrize("path", ["/", "/status", "/status/page.css", "/status/page.js", "/status/icon.svg"])
async def test_browsers_are_told_to_trust_nothing_but_this_server(served: Served, path: str) -> None:
    """No scripts but its own files, no frames around it, nothing for other origins."""
    answer = await get(served.peers, path, token=served.peers.tokens.viewer())
    policy = answer.headers["Content-Security-Policy"]
    assert answer.status == 200
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_has_no_script_or_style_of_its_own(served: Served) -> None:
    """Only files, by addresses that change with them; they say nothing of what is so and need no token."""
    page = (await viewing(served)).text
    assert " style=" not in page
    assert "<style" not in page
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    for address in set(addresses) - {"./", *NAVIGATION}:
        assert re.fullmatch(r"status/[a-z.]+\?[0-9a-f]{12}", address)
        assert (await get(served.peers, f"/{address}")).status == 200
    assert re.findall(r"<script[^>]*>([^<]*)", page) == [""]


async def test_what_changes_is_pushed(served: Served) -> None:
    looking = await stream(served.peers, served.peers.tokens.viewer())
    await looking.showing("Nothing is being reclaimed")
    agents = await served.peers.agents(["n1"])
    await agents["n1"].notices("n1", left=60.0)
    assert "node n1" in await looking.showing("1 reclaim under way")


async def test_the_figures_are_said_again_though_nothing_changes(served: Served) -> None:
    """What a browser counts by its own clock is put right every few seconds."""
    looking = await stream(served.peers, served.peers.tokens.viewer())
    first, second = await looking.line(), await looking.line()
    assert (first["type"], second["type"]) == ("page", "page")


async def test_everybody_gets_the_same_rendering(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    renderings: list[StatusSnapshot] = []

    def counted(snapshot: StatusSnapshot) -> PageContents:
        renderings.append(snapshot)
        return overview(snapshot)

    monkeypatch.setattr(rendering, "overview", counted)
    streams = [await stream(served.peers, served.peers.tokens.viewer()) for _ in range(20)]
    lines = [await each.line() for each in streams]
    assert all(line["type"] == "page" for line in lines)
    assert 1 <= len(renderings) <= 3


async def test_it_is_rendered_beside_the_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of nodes, and decisions must not wait for a viewer."""
    threads = list[threading.Thread]()

    def noted(snapshot: StatusSnapshot) -> PageContents:
        threads.append(threading.current_thread())
        return overview(snapshot)

    monkeypatch.setattr(rendering, "overview", noted)
    assert (await viewing(served)).status == 200
    assert threads
    assert threading.current_thread() not in threads


async def test_no_more_than_so_many_look_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is told to come later; the page itself still opens."""
    monkeypatch.setattr(endpoints, "MAX_VIEWERS", 1)
    token = served.peers.tokens.viewer()
    looking = await stream(served.peers, token)
    await looking.line()
    assert (await get(served.peers, "/status/stream", token=token)).status == 429
    assert (await viewing(served)).status == 200
    looking.response.close()
    async with asyncio.timeout(PATIENCE):
        while (again := await stream(served.peers, token)).response.status == 429:
            again.response.close()
            await asyncio.sleep(0.01)


async def test_a_supervisor_that_stops_says_goodbye(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        looking = await stream(served.peers, served.peers.tokens.viewer())
        await looking.line()
        stopping = asyncio.create_task(served.stop())
        while (line := await looking.line())["type"] == "page":
            pass
        assert line == {"type": "goodbye", "reason": "the supervisor is stopping"}
        await stopping


async def test_a_page_that_cannot_be_rendered_harms_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 500, its stream says so and goes on, and jobs are decided about as ever."""
    looking = await stream(served.peers, served.peers.tokens.viewer())
    await looking.line()
    with monkeypatch.context() as broken:

        def fail(_snapshot: StatusSnapshot) -> PageContents:
            raise RuntimeError("no paper")

        broken.setattr(rendering, "overview", fail)
        assert (await viewing(served)).status == 500
        while (await looking.line())["type"] != "failed":
            pass
        await reclaimed(served)
    await looking.showing("1 reclaim under way")
    assert (await viewing(served)).status == 200


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    """Then there is no such path, and the rest is as it was."""
    async with serving(tmp_path, status_page=False) as served:
        for path in ("/", "/status", "/status/stream", "/status/page.js"):
            answer = await get(served.peers, path, token=served.peers.tokens.viewer())
            assert answer.status == 404
            assert "unknown_call" in answer.text
        assert await served.peers.post("/status/login", None, {}) == PeerRefusal(404, "unknown_call")
        assert (await served.status())["jobs"] == []
