"""The control loop is level-triggered, and a decision is durable before anybody hears of it, once."""

import asyncio
import time
from pathlib import Path

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.job import Decision, Phase, Result, SupervisedJob
from supervisor.identity.tokens import Tokens
from supervisor.settings import Settings
from supervisor.store.sqlite import SqliteStore
from supervisor.wiring.app import Foundation, Retention, SupervisorService
from tests.supervisor.decide.decide_builders import observing, running_job
from tests.supervisor.store.store_behaviour import opened, put_job
from tests.testkit.serving import Lines, PeerRefusal, Served, full_disk, noticed, serving
from tests.testkit.waiting import PATIENCE, until


async def heartbeats(lines: Lines, count: int) -> list[object]:
    """What comes on a stream until it has beaten that often."""
    return [line for _ in range(count) for line in await lines.before_heartbeat()]


class OneSlowJob(SqliteStore):
    async def decide(self, job: SupervisedJob, decision: Decision) -> bool:
        if job.name == "slow":
            await asyncio.get_running_loop().create_future()
        return await super().decide(job, decision)


async def test_jobs_do_not_wait_for_each_others_decisions(tmp_path: Path) -> None:
    """One decision that cannot be stored keeps nobody else waiting, for however many passes."""
    async with serving(tmp_path, kept_in=OneSlowJob) as served:
        agents = await served.peers.agents(["n1", "n2"])
        await served.peers.launcher("slow", ["n1"])
        _, order = await served.peers.running("job", ["n2"])
        process = await served.peers.process(order["token"], "n2", 0)
        await agents["n2"].notices("n2")
        await process.lines.matching(directive="STOP")
        assert served.job("slow").decision.phase is Phase.WAITING


async def test_nothing_is_decided_or_done_while_it_is_not_certain_who_leads(tmp_path: Path) -> None:
    """Processes are told what is known, as before; the rest comes when it is certain again."""
    certain = True
    async with serving(tmp_path, may_act=lambda: certain) as served:
        agents = await served.peers.agents(["n1", "n2", "n3"])
        launcher, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
        process = await served.peers.process(order["token"], "n2", 1)
        await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
        await launcher.lines.before_heartbeat()
        before = served.job("job").decision
        certain = False
        await agents["n2"].notices("n2")
        await process.lines.matching(directive="LEAVE")
        assert not await heartbeats(launcher.lines, 5)
        assert served.job("job").decision == before
        certain = True
        await launcher.lines.matching(exclusions=["n2"])


async def test_nothing_is_told_before_it_is_durable_and_the_decision_is_retried(tmp_path: Path) -> None:
    """A decision falls due while the disk is full: nobody hears of it, until there is room again."""
    # The disk is full before it ends, however busy the machine is.
    async with serving(tmp_path, window_seconds=4.0) as served:
        agents = await served.peers.agents(["n1", "n2"])
        launcher, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
        process = await served.peers.process(order["token"], "n2", 1)
        await agents["n2"].notices("n2")
        await until(lambda: served.job("job").decision.window_until is not None)
        await full_disk(served.store, full=True)
        before = served.job("job").decision
        assert before.window_until is not None
        due = before.window_until
        await until(lambda: time.time() > due)
        told = await heartbeats(launcher.lines, 7) + await heartbeats(process.lines, 7)
        assert served.job("job").decision == before
        assert not [line for line in told if isinstance(line, dict) and line.get("exclusions")]
        assert not [line for line in told if isinstance(line, dict) and line["generation"] > before.generation]
        await full_disk(served.store, full=False)
        changed = await launcher.lines.matching(exclusions=["n2"])
        assert changed["generation"] == served.job("job").decision.generation
        await process.lines.matching(directive="LEAVE", generation=changed["generation"])


async def test_nothing_is_confirmed_that_is_not_durable(served: Served) -> None:
    """Every peer waits or is asked to try again, and is believed when it does."""
    agents = await served.peers.agents(["n1"])
    launcher, order = await served.peers.running("job", ["n1"])
    process = await served.peers.process(order["token"], "n1", 0)
    await agents["n1"].notices("n1")
    stop = await process.lines.matching(directive="STOP")
    await full_disk(served.store, full=True)
    before = served.store.snapshot()
    await agents["n1"].say(notice=noticed("n1", 2, left=30.0))
    assert await launcher.says(restarts=1) == PeerRefusal(503, "not_serving")
    assert await process.reports("saved", stop) == PeerRefusal(503, "not_serving")
    assert served.store.snapshot() is before
    await full_disk(served.store, full=False)
    assert await process.reports("saved", stop) == PeerRefusal(200, None)
    await launcher.reports(restarts=1)
    await agents["n1"].acknowledged(2)
    await launcher.lines.matching(phase="Suspended")


async def test_a_group_that_waits_for_room_is_one_change(tmp_path: Path) -> None:
    async with serving(tmp_path, window_seconds=0.5) as served:
        agents = await served.peers.agents(["n1", "n2", "n3"])
        launcher, order = await served.peers.running("job", ["n1", "n2", "n3"], min_workers=1)
        ranks = [await served.peers.process(order["token"], node, rank) for rank, node in enumerate(["n1", "n2", "n3"])]
        await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
        await full_disk(served.store, full=True)
        await agents["n2"].say(notice=noticed("n2", left=60.0))
        await ranks[1].lines.matching(directive="LEAVE")
        await heartbeats(launcher.lines, 5)
        await agents["n3"].say(notice=noticed("n3", left=60.0))
        await ranks[2].lines.matching(directive="LEAVE")
        await full_disk(served.store, full=False)
        changed = await launcher.lines.any()
        while not changed.get("exclusions"):
            changed = await launcher.lines.any()
        assert changed["exclusions"] == ["n2", "n3"]


async def test_what_cannot_be_made_durable_is_shown_and_not_decided_on(served: Served) -> None:
    """A process does not go down with its host for want of a disk; once there is room, all of it is decided."""
    agents = await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
    ranks = [await served.peers.process(order["token"], node, rank) for rank, node in enumerate(["n1", "n2"])]
    await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
    await full_disk(served.store, full=True)
    before = served.store.snapshot()
    await agents["n2"].say(notice=noticed("n2", left=30.0))
    leave = await ranks[1].lines.matching(directive="LEAVE")
    assert 20 < leave["act_in"] < 30 - 0.5
    assert leave["notice"]["host"] == "n2"
    shown = await ranks[0].lines.next()
    while shown["notice"] is None:
        shown = await ranks[0].lines.next()
    assert (shown["directive"], shown["notice"]["host"]) == ("RUN", "n2")
    assert not await heartbeats(launcher.lines, 5)
    assert served.store.snapshot() is before
    await full_disk(served.store, full=False)
    await agents["n2"].acknowledged(1)
    assert await launcher.lines.matching(exclusions=["n2"])


async def test_what_was_never_durable_goes_with_the_stream_that_said_it(served: Served) -> None:
    """Its agent says it again, or does not; a withdrawal takes it back as well."""
    agents = await served.peers.agents(["n1", "n2"])
    _, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
    process = await served.peers.process(order["token"], "n2", 1)
    await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
    await full_disk(served.store, full=True)
    await agents["n2"].say(notice=noticed("n2"))
    await process.lines.matching(directive="LEAVE")
    await agents["n2"].say(notice=noticed("n2", 2, withdrawn=True))
    await process.lines.matching(directive="RUN")
    await agents["n2"].say(notice=noticed("n2", 3))
    await process.lines.matching(directive="LEAVE")
    agents["n2"].call.cancel()
    await process.lines.matching(directive="RUN")
    await full_disk(served.store, full=False)
    again = await served.peers.agent("n2", session=11, notices=[noticed("n2", 1)])
    await again.acknowledged(1)
    await process.lines.matching(directive="LEAVE")


async def test_no_job_is_decided_twice(served: Served) -> None:
    """Every generation reaches the launcher once and in order, while two jobs and a dozen reports are under way."""
    nodes = [f"n{number}" for number in range(8)]
    agents = await served.peers.agents(nodes)
    jobs = {"left": nodes[:4], "right": nodes[4:]}
    launchers = {name: await served.peers.running(name, hosts, min_workers=1) for name, hosts in jobs.items()}
    await asyncio.gather(*(agents[node].notices(node) for node in nodes if node not in ("n0", "n4")))
    await asyncio.gather(*(launcher.reports(restarts=1) for launcher, _ in launchers.values()))
    for name, (launcher, order) in launchers.items():
        seen = [order["generation"]]
        while seen[-1] < served.job(name).decision.generation or len(served.job(name).decision.exclusions) < 3:
            seen.append((await launcher.lines.next())["generation"])
        assert seen == list(range(seen[0], seen[-1] + 1))


async def test_a_restart_without_streams_stops_nobody_and_starts_nobody(tmp_path: Path) -> None:
    """Nobody connected means nobody is known, for longer than every grace; a notice and its exclusion stay."""
    async with serving(tmp_path) as served:
        agents = await served.peers.agents(["n1", "n2", "n3", "n4"])
        launcher, _ = await served.peers.running("running", ["n1", "n2"], min_workers=1)
        await served.peers.running("whole", ["n3"])
        await agents["n2"].notices("n2")
        changed = await launcher.lines.matching(exclusions=["n2"])
        await launcher.reports(applied=changed["generation"])
        await served.peers.launcher("waiting", ["n4", "n5"])
        await until(lambda: served.job("running").decision.phase is Phase.RUNNING)
        before = {name: served.job(name) for name in ("running", "whole", "waiting")}
    async with serving(tmp_path, rank_zero_grace_seconds=0.2, lost_grace_seconds=0.2) as served:
        await until(lambda: served.age() > 1.0)
        assert {name: served.job(name) for name in before} == before


async def test_a_job_that_is_being_ended_is_saved_first_and_then_over(tmp_path: Path) -> None:
    """A restart of the supervisor in between changes nothing: what was asked for is stored."""
    async with serving(tmp_path) as served:
        await served.peers.agent("n1")
        launcher, order = await served.peers.running("job", ["n1"])
        await launcher.reports(ending=True)
        stopping = await launcher.lines.matching(stopping=True)
        assert (stopping["phase"], stopping["run"]) == ("Stopping", 1)
    async with serving(tmp_path) as served:
        process = await served.peers.process(order["token"], "n1", 0)
        stop = await process.lines.matching(directive="STOP", release=False)
        launcher = await served.peers.launcher("job", ["n1"], report=launcher.report)
        assert await process.reports("saved", stop) == PeerRefusal(200, None)
        suspended = await launcher.lines.matching(order="wait")
        assert suspended["reason"].endswith(
            "was asked to end the job: stopping. Rank 0 has saved a checkpoint of step 7."
        )
        await launcher.reports(running=False, exit_code=-15, applied=suspended["generation"])
        await served.peers.agent("n1")
        assert {each["order"] for each in await launcher.lines.before_heartbeat()} <= {"wait"}
        await launcher.reports(result="terminated")
        assert (await launcher.lines.matching(order="end"))["phase"] == "Finished"


async def test_after_a_restart_the_line_goes_on(tmp_path: Path) -> None:
    """Everybody says hello again, and a notice stops the job as it would have before."""
    async with serving(tmp_path) as served:
        await served.peers.agents(["n1", "n2"])
        launcher, order = await served.peers.running("job", ["n1", "n2"])
        report = {name: value for name, value in launcher.report.items() if name not in ("job", "instance")}
    async with serving(tmp_path) as served:
        agents = await served.peers.agents(["n1", "n2"])
        launcher = await served.peers.launcher("job", ["n1", "n2"], report=report)
        line = await launcher.lines.any()
        assert (line["order"], line["run"]) == ("run", 1)
        process = await served.peers.process(order["token"], "n1", 0)
        assert (await process.lines.any())["directive"] == "RUN"
        await agents["n2"].notices("n2")
        stop = await process.lines.matching(directive="STOP")
        assert await process.reports("saved", stop) == PeerRefusal(200, None)
        assert (await launcher.lines.matching(order="wait"))["phase"] == "Suspended"


async def test_of_two_jobs_with_capacity_for_one_the_first_runs_and_then_the_other(served: Served) -> None:
    await served.peers.agents(["n1", "n2"])
    first, _ = await served.peers.running("first", ["n1", "n2"])
    second = await served.peers.launcher("second", ["n1", "n2"])
    assert (await second.lines.any())["order"] == "wait"
    assert await heartbeats(second.lines, 2) == []
    await first.reports(running=False, exit_code=0, result="succeeded")
    assert (await second.lines.matching(order="run"))["hosts"] == ["n1", "n2"]


async def test_nothing_is_kept_for_a_job_whose_launcher_will_be_reclaimed(served: Served) -> None:
    agents = await served.peers.agents(["n1", "n2"])
    await agents["n2"].notices("n2")
    await served.peers.launcher("first", ["n1"], launcher_host="n2")
    second, order = await served.peers.running("second", ["n1"])
    assert order["hosts"] == ["n1"]
    assert served.job("first").decision.phase is Phase.WAITING
    await second.lines.before_heartbeat()


async def test_waiting_too_long_ends_the_job(served: Served) -> None:
    launcher = await served.peers.launcher("job", ["n1"], max_wait_seconds=0.3)
    async with asyncio.timeout(PATIENCE):
        assert (await launcher.lines.matching(order="end"))["phase"] == "TimedOut"
    await launcher.reports(result="timed_out")
    assert served.job("job").decision.phase is Phase.TIMED_OUT


def _retention(settings: Settings, store: SqliteStore, clock: Clock) -> Retention:
    tokens = Tokens.load(settings.data_dir)
    base = Foundation(settings=settings, store=store, tokens=tokens, clock=clock, bulkhead=Bulkhead(clock))
    return SupervisorService(base).retention


async def test_a_job_that_trained_for_long_is_kept_from_its_end(tmp_path: Path) -> None:
    """Jobs that an earlier version stored without their end count from when they are first seen as ended."""
    settings, clock = Settings(data_dir=tmp_path), Clock()
    week, day = 7 * 86400, settings.retention_hours * 3600
    trained = observing(running_job(), registered_at=clock.now() - week, running=False, result=Result.SUCCEEDED)
    async with opened(lambda: SqliteStore.open(tmp_path / "store.sqlite")) as store:
        await put_job(store, trained)
        retention = _retention(settings, store, clock)
        kept = list[bool]()
        for seconds in (0, day - 60, 120):
            clock.move(seconds)
            await retention.once()
            kept.append(trained.name in store.snapshot().jobs)
        assert kept == [True, True, False]


async def test_the_end_of_a_job_is_when_its_launcher_reports_it(served: Served) -> None:
    """A later report of the same launcher does not move it."""
    launcher = await served.peers.launcher("job", ["n1"])
    assert served.job("job").observed.ended_at is None
    await launcher.reports(result="succeeded")
    ended_at = served.job("job").observed.ended_at
    assert ended_at is not None
    assert ended_at >= served.job("job").observed.registered_at
    await launcher.reports(exit_code=0)
    assert served.job("job").observed.ended_at == ended_at


async def test_a_store_that_cannot_forget_now_does_so_later(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = await SqliteStore.open(tmp_path / "store")
    await store.close()
    await _retention(settings, store, Clock()).once()
