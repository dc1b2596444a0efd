"""Jobs that an operator suspends, resumes and stops over HTTP."""

from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import Phase, RequestKind
from tests.testkit.serving import LauncherPeer, PeerRefusal, ProcessPeer, Served, serving
from tests.testkit.waiting import until

NODES = ["n1", "n2"]


async def _says(served: Served, verb: str, **body: Any) -> PeerRefusal:
    return await served.peers.post(f"/v1/jobs/{verb}", served.peers.tokens.operator("ann"), {"job": "job", **body})


async def _running(served: Served) -> tuple[LauncherPeer, ProcessPeer]:
    await served.peers.agents(NODES)
    launcher, order = await served.peers.running("job", NODES)
    return launcher, await served.peers.process(order["token"], "n1", 0)


async def _saved(launcher: LauncherPeer, process: ProcessPeer) -> dict[str, Any]:
    """Rank 0 saves when it is told to, and the launcher ends its command; returns the order that it obeyed."""
    stop = await process.lines.matching(directive="STOP")
    assert await process.reports("saved", stop, step=7) == PeerRefusal(200, None)
    waiting = await launcher.lines.matching(order="wait")
    await launcher.reports(running=False, exit_code=1, applied=waiting["generation"])
    return waiting


async def test_a_job_is_saved_held_and_resumed(served: Served) -> None:
    """Its hosts are free for it all the time, and it takes them only once it may run again."""
    launcher, process = await _running(served)
    assert await _says(served, "suspend", reason="power cut.") == PeerRefusal(200, None)
    waiting = await _saved(launcher, process)
    assert waiting["reason"] == "ann has suspended the job: power cut. Rank 0 has saved a checkpoint of step 7."
    await until(lambda: not served.job("job").decision.hosts)
    (shown,) = (await served.status())["jobs"]
    asked = shown["request"]
    assert (asked["kind"], asked["by"], asked["reason"], asked["age_seconds"] >= 0) == (
        "suspend",
        "ann",
        "power cut",
        True,
    )
    assert (shown["phase"], shown["waits_for"]) == ("Suspended", "")
    assert await _says(served, "suspend", reason="power cut.") == PeerRefusal(200, None)
    held = served.job("job")
    assert (held.decision.phase, held.decision.waiting_since) == (Phase.SUSPENDED, None)
    assert await _says(served, "resume") == PeerRefusal(200, None)
    resumed = await launcher.lines.matching(order="run", run=2)
    assert sorted(resumed["hosts"]) == NODES
    assert await _says(served, "resume") == PeerRefusal(200, None)
    assert (await served.status())["jobs"][0]["request"] is None


async def test_a_stopped_job_is_saved_and_its_launcher_told_to_end(served: Served) -> None:
    launcher, process = await _running(served)
    assert await _says(served, "stop") == PeerRefusal(200, None)
    assert (await _says(served, "suspend")).code == "job_is_over"
    await _saved(launcher, process)
    ended = await launcher.lines.matching(order="end")
    assert (ended["phase"], ended["reason"]) == (
        "Finished",
        "ann has stopped the job. Rank 0 has saved a checkpoint of step 7.",
    )
    assert (await _says(served, "resume")).code == "job_is_over"
    await launcher.reports(result="terminated", applied=ended["generation"], running=False, exit_code=1)
    await until(lambda: served.job("job").over)
    assert served.job("job").decision.reason == ended["reason"]


async def test_a_suspension_outlives_supervisor_and_launcher(tmp_path: Path) -> None:
    """It is stored with the job, and a launcher that is started again under that name is told to wait."""
    async with serving(tmp_path) as served:
        await served.peers.agents(NODES)
        launcher = await served.peers.launcher("job", NODES)
        await launcher.lines.matching(order="run")
        assert await _says(served, "suspend", reason="power cut") == PeerRefusal(200, None)
        await launcher.lines.matching(order="wait")
    async with serving(tmp_path, launcher_live_seconds=0.001) as served:
        await served.peers.agents(NODES)
        again = await served.peers.launcher("job", NODES, instance="instance-2")
        waiting = await again.lines.matching(order="wait", phase="Suspended")
        assert waiting["reason"] == "ann has suspended the job: power cut."
        assert served.job("job").observed.request is not None
        assert await _says(served, "resume") == PeerRefusal(200, None)
        await again.lines.matching(order="run")


@pytest.mark.parametrize("verb", ["suspend", "stop", "resume"])
async def test_only_an_operator_steers_a_known_job(served: Served, verb: str) -> None:
    """Others are refused, as are names that no job has and texts that would command a terminal."""
    await served.peers.agents(NODES)
    await served.peers.launcher("job", NODES)
    tokens, path = served.peers.tokens, f"/v1/jobs/{verb}"
    for token in (tokens.viewer(), tokens.launcher("someone"), tokens.agent("n1")):
        assert (await served.peers.post(path, token, {"job": "job"})).code == "foreign_token"
    assert (await served.peers.post(path, None, {"job": "job"})).code == "bad_token"
    assert (await _says(served, verb, job="other")).code == "unknown_job"
    assert (await _says(served, verb, job=7)).code == "malformed"
    if verb != "resume":
        assert (await _says(served, verb, reason="\x1b[2J")).code == "malformed"
        assert (await _says(served, verb, reason="x" * 257)).code == "malformed"
    assert served.job("job").observed.request is None


async def test_the_last_of_two_operators_is_named(served: Served) -> None:
    await served.peers.agents(NODES)
    await served.peers.launcher("job", NODES)
    await _says(served, "suspend", reason="power cut")
    token = served.peers.tokens.operator("eve")
    await served.peers.post("/v1/jobs/suspend", token, {"job": "job", "reason": "no budget"})
    request = served.job("job").observed.request
    assert request is not None
    assert (request.kind, request.by, request.reason) == (RequestKind.SUSPEND, "eve", "no budget")
