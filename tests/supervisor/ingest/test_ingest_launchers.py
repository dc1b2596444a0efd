"""The launchers' stream: a hello registers a job, orders follow the decisions."""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

from supervisor.domain.job import OnLoss, Phase, Result
from tests.testkit.serving import PeerRefusal, Served, launcher_hello, noticed, serving
from tests.testkit.waiting import PATIENCE, until

STREAM = "/v1/launchers/stream"
REPORT = "/v1/launchers/report"
NO_MESSAGES = (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"job": NaN}', b'{"job": 1e999}', b'{"x":' + b"[" * 50_000)
MALFORMED: tuple[dict[str, Any], ...] = (
    {"min_workers": 3, "max_workers": 2, "requested_workers": 2},
    {"min_workers": 0},
    {"min_workers": 1, "max_workers": 3, "requested_workers": 4},
    {"min_workers": 2, "max_workers": 3, "requested_workers": 1},
    {"min_workers": "1"},
    {"min_workers": 1, "max_workers": 3, "requested_workers": 3, "worker_multiple": 2},
    {"worker_multiple": 0},
    {"worker_multiple": None},
    {"on_loss": "wait"},
    {"max_wait_seconds": -1},
    {"max_wait_seconds": None},
    {"framework": "mpi"},
    {"job": "Job"},
    {"job": "-job"},
    {"job": ""},
    {"job": "j" * 254},
    {"job": "job\n"},
    {"job": "../job"},
    {"instance": "short"},
    {"launcher_host": "host:8"},
    {"report": {"revision": 1, "hosts": ["n1:8"], "run": 0, "running": False}},
    {"report": {"revision": 1, "hosts": ["n1\n"], "run": 0, "running": False}},
    {"report": {"revision": -1, "hosts": [], "run": 0, "running": False}},
    {"report": {"revision": 1, "hosts": [], "run": 0, "running": False, "exit_code": 10**30}},
    {"report": {"revision": 1, "hosts": [], "run": 0, "running": False, "result": "won"}},
    {"report": {}},
)


async def test_a_hello_registers_the_job_and_the_first_line_is_the_present_order(served: Served) -> None:
    launcher = await served.peers.launcher("job", ["n1", "n2"], max_workers=5, requested_workers=3)
    order = await launcher.lines.any()
    assert {name: order[name] for name in ("type", "order", "phase", "run", "stopping")} == {
        "type": "order",
        "order": "wait",
        "phase": "Waiting",
        "run": 0,
        "stopping": False,
    }
    assert order["hosts"] == []
    assert order["exclusions"] == []
    assert order["workers"] == 0
    spec = served.job("job").spec
    assert (spec.min_workers, spec.requested_workers, spec.max_workers) == (2, 3, 5)


async def test_a_hello_says_what_the_job_wants_on_a_loss(served: Served) -> None:
    """The hello of an older launcher, which says nothing of it, asks to shrink to any number."""
    await served.peers.launcher("new", ["n1"], max_workers=4, requested_workers=4, on_loss="hold", worker_multiple=2)
    await served.peers.launcher("old", ["n1"])
    new, old = served.job("new").spec, served.job("old").spec
    assert (new.on_loss, new.worker_multiple) == (OnLoss.HOLD, 2)
    assert (old.on_loss, old.worker_multiple) == (OnLoss.SHRINK, 1)


async def test_orders_are_pushed_as_decisions_change(served: Served) -> None:
    """Hosts become clear: run. One of three is noticed: excluded. It is withdrawn: taken back."""
    agents = [await served.peers.agent(node) for node in ("n1", "n2", "n3")]
    launcher, order = await served.peers.running("job", ["n1", "n2", "n3", "n4"], min_workers=2, requested_workers=3)
    assert order["hosts"] == ["n1", "n2", "n3"]
    assert (order["run"], order["workers"]) == (1, 3)
    await agents[1].say(notice=noticed("n2"))
    smaller = await launcher.lines.matching(exclusions=["n2"])
    assert (smaller["workers"], smaller["order"], smaller["run"]) == (2, "run", 1)
    assert smaller["generation"] > order["generation"]
    await launcher.reports(applied=smaller["generation"])
    await agents[1].say(notice=noticed("n2", 2, withdrawn=True))
    assert (await launcher.lines.matching(exclusions=[]))["workers"] == 3


async def test_a_group_of_notices_is_one_change_of_exclusions(tmp_path: Path) -> None:
    # A window that all of them come within, however busy the machine is.
    async with serving(tmp_path, window_seconds=4.0) as served:
        nodes = [f"n{number}" for number in range(1, 7)]
        agents = [await served.peers.agent(node) for node in nodes]
        launcher, _ = await served.peers.running("job", nodes, min_workers=2)
        for agent, node in zip(agents[:3], nodes[:3], strict=True):
            await agent.say(notice=noticed(node))
        seen: list[list[str]] = []
        while seen[-1:] != [nodes[:3]]:
            seen.append((await launcher.lines.next())["exclusions"])
        assert [each for each in seen if each] == [nodes[:3]]


async def test_the_order_carries_the_token_of_the_jobs_run(served: Served) -> None:
    """A process of that run is let in with it; one of an earlier run is not."""
    await served.peers.agent("n1")
    launcher, order = await served.peers.running("job", ["n1"])
    process = await served.peers.process(order["token"], "n1", 0)
    assert (await process.lines.any())["run"] == 1
    await launcher.reports(run=2)
    assert await process.reports("rank", {"run": 1, "generation": 0}) == PeerRefusal(409, "run_is_over")


async def test_a_name_that_is_live_is_refused(served: Served) -> None:
    await served.peers.launcher("job", ["n1"])
    another = launcher_hello("job", ["n1"], instance="instance-2")
    for name in ("launcher", "somebody-else"):
        token = served.peers.tokens.launcher(name)
        assert await served.peers.post(STREAM, token, another) == PeerRefusal(409, "name_is_live")


async def test_of_two_first_hellos_at_once_one_is_refused(tmp_path: Path) -> None:
    """A name is taken from the moment it is registered, not only once the stream is open."""
    # The one that is accepted ends at once, and its name is not to be free before the last of them was heard.
    async with serving(tmp_path, launcher_live_seconds=4.0) as served:
        await until(lambda: served.age() > 4.0)
        token = served.peers.tokens.launcher("launcher")
        bodies = [launcher_hello("job", ["n1"], instance=f"instance-{number}") for number in range(6)]
        tries = await asyncio.gather(*(served.peers.refused_or_open(STREAM, token, body) for body in bodies))
        assert sorted(each.status for each in tries) == [200, 409, 409, 409, 409, 409]


async def test_a_name_is_free_again_a_while_after_its_launcher_went(tmp_path: Path) -> None:
    # The first try comes within it, however busy the machine is.
    async with serving(tmp_path, launcher_live_seconds=4.0) as served:
        launcher = await served.peers.launcher("job", ["n1"])
        uid = served.job("job").uid
        launcher.lines.close()
        body = launcher_hello("job", ["n1"], instance="instance-2")
        token = served.peers.tokens.launcher("launcher")
        assert await served.peers.post(STREAM, token, body) == PeerRefusal(409, "name_is_live")
        async with asyncio.timeout(PATIENCE):
            while (await served.peers.refused_or_open(STREAM, token, body)).status == 409:
                assert served.job("job").uid == uid
        assert served.job("job").uid != uid


async def test_a_launcher_that_went_without_a_word_keeps_its_hosts_until_its_name_is_taken_up(served: Served) -> None:
    """Its processes may go on without it: nobody guesses, and the hosts are free once its user speaks again."""
    await served.peers.agent("n1")
    lost, _ = await served.peers.running("lost", ["n1"])
    other = await served.peers.launcher("other", ["n1"])
    lost.lines.close()
    again = launcher_hello("lost", ["n1"], instance="instance-2")
    refusal = PeerRefusal(409, "name_is_live")
    while await served.peers.refused_or_open(STREAM, served.peers.tokens.launcher("launcher"), again) == refusal:
        assert all(line["order"] == "wait" for line in await other.lines.before_heartbeat() if line["type"] == "order")
        assert served.job("lost").decision.hosts == {"n1"}
    assert (await other.lines.matching(order="run"))["hosts"] == ["n1"]


async def test_the_name_of_a_job_that_is_over_is_free_at_once(served: Served) -> None:
    launcher = await served.peers.launcher("job", ["n1"])
    await launcher.reports(result="succeeded")
    await until(lambda: served.job("job").decision.phase is Phase.FINISHED)
    again = await served.peers.launcher("job", ["n1"], instance="instance-2")
    assert (await again.lines.next())["phase"] == "Waiting"


async def test_the_same_instance_says_hello_again_and_goes_on(served: Served) -> None:
    """Its job, its run and its generation are still there, and the first stream ends."""
    await served.peers.agent("n1")
    launcher, order = await served.peers.running("job", ["n1"])
    before = served.job("job")
    report = {name: value for name, value in launcher.report.items() if name not in ("job", "instance")}
    again = await served.peers.launcher("job", ["n1"], report=report)
    line = await again.lines.any()
    assert (line["order"], line["run"]) == ("run", 1)
    assert line["generation"] >= order["generation"]
    assert served.job("job").uid == before.uid
    assert (await launcher.lines.matching(type="goodbye"))["reason"]
    await again.reports(restarts=1)


async def test_a_foreign_launcher_may_not_report(served: Served) -> None:
    launcher = await served.peers.launcher("job", ["n1"])
    before = served.job("job")
    foreign = served.peers.tokens.launcher("somebody-else")
    body = {**launcher.report, "revision": 9, "result": "succeeded"}
    assert await served.peers.post(REPORT, foreign, body) == PeerRefusal(403, "foreign_token")
    body["instance"] = "instance-2"
    assert await served.peers.post(REPORT, launcher.token, body) == PeerRefusal(403, "foreign_token")
    assert served.job("job") == before


async def test_an_older_revision_is_refused_and_the_same_one_is_repeated(served: Served) -> None:
    """The sender of a late report sends the present state; the sender of a lost answer gets one."""
    launcher = await served.peers.launcher("job", ["n1"])
    await launcher.reports(hosts=["n1", "n2"])
    late = {**launcher.report, "revision": 1, "hosts": []}
    assert await served.peers.post(REPORT, launcher.token, late) == PeerRefusal(409, "older_revision")
    assert await served.peers.post(REPORT, launcher.token, launcher.report) == PeerRefusal(200, None)
    assert served.job("job").observed.hosts == {"n1", "n2"}


async def test_a_report_about_an_unknown_job_is_refused(served: Served) -> None:
    token = served.peers.tokens.launcher("launcher")
    hello = launcher_hello("job", ["n1"])
    body = {"job": "job", "instance": "instance-1", **hello["report"]}
    assert await served.peers.post(REPORT, token, body) == PeerRefusal(404, "unknown_job")


async def test_a_malformed_hello_is_refused(served: Served) -> None:
    token = served.peers.tokens.launcher("launcher")
    for changes in MALFORMED:
        body = {**launcher_hello("job", ["n1"]), **changes}
        assert await served.peers.post(STREAM, token, body) == PeerRefusal(400, "malformed"), changes
    assert not served.store.snapshot().jobs


async def test_what_is_no_message_is_refused(served: Served) -> None:
    """Empty, cut, of another shape, no text, no numbers, or nested without end."""
    token = served.peers.tokens.launcher("launcher")
    for path, body in product((STREAM, REPORT), NO_MESSAGES):
        assert await served.peers.post(path, token, body) == PeerRefusal(400, "malformed"), body[:20]


async def test_a_body_of_a_mebibyte_is_read_and_a_larger_one_refused(served: Served) -> None:
    token = served.peers.tokens.launcher("launcher")
    assert await served.peers.post(STREAM, token, b" " * 2**20) == PeerRefusal(400, "malformed")
    assert await served.peers.post(STREAM, token, b" " * (2**20 + 1)) == PeerRefusal(413, "oversized")


async def test_unknown_fields_are_ignored(served: Served) -> None:
    launcher = await served.peers.launcher("job", ["n1"], colour="green")
    assert (await launcher.lines.any())["phase"] == "Waiting"


async def test_a_running_job_is_taken_over_after_the_store_was_lost(served: Served) -> None:
    """No stop, no new run: its generation goes on from the one that its launcher has in place."""
    report = {"revision": 40, "hosts": ["n1", "n2"], "run": 3, "running": True, "applied": 17}
    launcher = await served.peers.launcher("job", ["n1", "n2"], report=report)
    order = await launcher.lines.any()
    assert (order["order"], order["run"], order["stopping"]) == ("run", 3, False)
    assert (order["hosts"], order["exclusions"]) == (["n1", "n2"], [])
    assert order["generation"] > 17
    assert all(each["order"] == "run" for each in await launcher.lines.before_heartbeat())
    assert served.job("job").decision.phase is Phase.RUNNING
    assert served.job("job").decision.stop is None


async def test_a_job_that_somebody_deleted_is_registered_again(served: Served) -> None:
    """Its launcher's stream ends: nobody would ever hear of the job otherwise, as it reports only what changes."""
    launcher = await served.peers.launcher("job", ["n1"])
    other = await served.peers.launcher("other", ["n2"])
    before = served.job("job")
    await served.store.forget_job(before.name, before.uid)
    goodbye = await launcher.lines.matching(type="goodbye")
    assert goodbye["reason"] == "the job is not known any more"
    again = await served.peers.launcher("job", ["n1"], report=launcher.report)
    assert (await again.lines.any())["type"] == "order"
    assert served.job("job").uid != before.uid
    assert all(each["type"] != "goodbye" for each in await other.lines.before_heartbeat())


async def test_a_result_finishes_the_job(served: Served) -> None:
    await served.peers.agent("n1")
    launcher, _ = await served.peers.running("job", ["n1"])
    await launcher.reports(running=False, exit_code=0, result="succeeded")
    await until(lambda: served.job("job").decision.phase is Phase.FINISHED)
    assert served.job("job").observed.result is Result.SUCCEEDED


async def test_heartbeats_come_between(tmp_path: Path) -> None:
    async with serving(tmp_path, heartbeat_seconds=1.0) as served:
        launcher = await served.peers.launcher("job", ["n1"])
        await launcher.lines.next()
        assert await launcher.lines.any() == {"type": "heartbeat"}


async def test_launchers_hear_goodbye_when_the_supervisor_stops(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        launcher = await served.peers.launcher("job", ["n1"])
        goodbye, _ = await asyncio.gather(launcher.lines.matching(type="goodbye"), served.stop())
        assert goodbye["reason"] == "the supervisor is stopping"
        assert await launcher.lines.any() == {}


async def test_a_waiting_launcher_is_told_what_its_job_lacks_and_again_when_that_changes(served: Served) -> None:
    """Neither an agent that connects nor a host that is listed is a decision."""
    launcher = await served.peers.launcher("job", ["n1", "n2"])
    order = await launcher.lines.matching(order="wait")
    assert order["waits_for"].endswith("n1, n2: no agent is connected.")
    await served.peers.agents(["n1"])
    changed = await launcher.lines.matching(generation=order["generation"])
    assert changed["waits_for"] == "1 of 2 listed hosts can be used, and 2 are needed. n2: no agent is connected."
    await launcher.reports(hosts=["n1", "n3"])
    changed = await launcher.lines.matching(generation=order["generation"])
    assert changed["waits_for"].endswith("n3: no agent is connected.")
    await served.peers.agents(["n3"])
    assert (await launcher.lines.matching(order="run"))["waits_for"] == ""
