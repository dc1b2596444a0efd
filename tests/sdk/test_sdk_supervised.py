"""Which report of a save answers a stop: real training processes, and a real supervisor on loopback."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubeai.elastic import identity
from structlog.testing import capture_logs

from supervisor.domain.job import AcknowledgementKind, Phase
from supervisor.domain.ledger import Account
from tests.job_supervisor.cli.cli_running import ended, line, run, started
from tests.sdk.sdk_scripts import Start, TrainingScript
from tests.testkit.serving import LauncherPeer, PeerRefusal, Served, serving
from tests.testkit.waiting import PATIENCE, until

JOB = "resnet"
FULL = "OSError: [Errno 28] No space left on device"

STEPS = """
    import errno, os, pathlib, time
    import kubeai.elastic as kubeai

    rank = int(os.environ["RANK"])
    kubeai.init(collective=os.environ["COLLECTIVE"] == "1")
    attempts = []

    def save(step):
        attempts.append(step)
        print("attempt", len(attempts), "of", step)
        if os.environ["FAILS"] == str(rank) and len(attempts) <= int(os.environ["TIMES"]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def batches():
        while True:
            time.sleep(0.005)
            yield None

    for step, _ in kubeai.steps(batches(), save, first=900):
        if step == 910:
            print("training")
"""

BACKGROUND = """
    import os, pathlib, threading, time
    import kubeai.elastic as kubeai
    from kubeai.elastic.api import _session

    go = pathlib.Path(os.environ["KUBEAI_DIR"], "go")
    kubeai.init(collective=True)
    kubeai.resumed(900)
    asked = threading.Event()

    def save_in_background(step):
        asked.wait()  # it is slow: the stop comes meanwhile
        kubeai.checkpoint_saved(step)

    step, pending = 900, None
    while True:
        time.sleep(0.005)
        step += 1
        if step == 910:
            pending = threading.Thread(target=save_in_background, args=(step,))
            pending.start()
            print("training")
        if kubeai.should_stop(step):
            asked.set()
            pending.join()
            while _session.monitor.outcome:
                time.sleep(0.005)
            print("the late one is reported")
            while not go.exists():
                time.sleep(0.005)
            kubeai.checkpoint_saved(step)
            kubeai.exit_for_resume()
"""

DIES = """
    import time
    import kubeai.elastic as kubeai

    kubeai.init()
    print("training")
    while kubeai.check_alive():
        time.sleep(0.005)
    {}
"""


@dataclass(frozen=True)
class SupervisedTraining:
    served: Served
    launcher: LauncherPeer
    scripts: list[TrainingScript]
    data: Path

    @property
    def phase(self) -> Phase:
        return self.served.job(JOB).decision.phase

    async def ends(self) -> None:
        """The launcher ends its command, as it is told to."""
        await until(lambda: self.phase is Phase.SUSPENDED)
        waiting = await self.launcher.lines.matching(order="wait")
        await self.launcher.reports(running=False, exit_code=75, applied=waiting["generation"])

    async def suspend(self) -> PeerRefusal:
        token = self.served.peers.tokens.operator("root")
        return await self.served.peers.post("/v1/jobs/suspend", token, {"job": JOB})


Train = Callable[..., contextlib.AbstractAsyncContextManager[SupervisedTraining]]


@pytest.fixture
def train(tmp_path: Path, start: Start) -> Train:
    """Runs a script as the ranks of a job that a supervisor supervises; `variables` are their environment."""

    @asynccontextmanager
    async def training(script: str, ranks: int = 2, **variables: str) -> AsyncIterator[SupervisedTraining]:
        data = tmp_path / "supervisor"
        data.mkdir()
        async with serving(data, just_in_time=False) as served:
            nodes = [f"n{number}" for number in range(ranks)]
            await served.peers.agents(nodes)
            launcher, order = await served.peers.running(JOB, nodes)
            identity.write(identity.RunIdentity(tmp_path, served.peers.http, order["token"], JOB, order["run"], None))
            given = {"COLLECTIVE": "0", "FAILS": "", "TIMES": "100", **variables, "WORLD_SIZE": str(ranks)}
            scripts = [start(script, **given, RANK=str(number), KUBEAI_HOST=node) for number, node in enumerate(nodes)]
            for each in scripts:
                await asyncio.to_thread(each.wait_for_line, "training", PATIENCE)
            yield SupervisedTraining(served, launcher, scripts, data)

    return training


async def _told(training: SupervisedTraining) -> list[dict[str, Any]]:
    """What the status says about the groups."""
    groups: list[dict[str, Any]] = (await training.served.status())["groups"]
    return groups


@pytest.mark.parametrize(("collective", "fails"), [("0", "0"), ("1", "1")], ids=["rank 0", "a part"])
async def test_a_save_that_fails_is_told_everywhere_and_ends_a_wait_with_75(
    train: Train, collective: str, fails: str
) -> None:
    """The job is suspended, and says why it has saved nothing and where it will resume."""
    async with train(STEPS, COLLECTIVE=collective, FAILS=fails) as job:
        arguments = ("suspend", JOB, "-y", "--wait", "--data-dir", job.data)
        async with asyncio.timeout(PATIENCE), started(*arguments) as command:
            await line(command, "is Suspended")
            await job.ends()
            said = await ended(command)
        reason = f"Rank {fails} could not save: {FULL}; the job will resume from the checkpoint of step 900."
        assert job.served.job(JOB).decision.reason.endswith(reason)
        assert said.code == 75
        assert f"rank {fails} could not save at step " in said.err
        assert "The job will resume from the checkpoint of step 900." in said.err
        explained = await run("explain", JOB, "--data-dir", job.data)
        assert f"rank {fails} of run 1 could not save at step " in explained.out
        (group,) = await _told(job)
        assert (group["acknowledged"], group["rank"], group["error"]) == ("failed", int(fails), FULL)
        assert [script.end() for script in job.scripts] == [1 if str(each) == fails else 75 for each in (0, 1)]


async def test_rank_0_alone_tries_again(train: Train) -> None:
    """Saved at the second attempt, nothing is lost."""
    async with train(STEPS, FAILS="0", TIMES="1") as job:
        assert await job.suspend() == PeerRefusal(200, None)
        await job.ends()
        # Rank 0 alone, if rank 1 had not said yet that it agrees to steps.
        assert re.search("(All ranks have|Rank 0 has) saved a checkpoint of step", job.served.job(JOB).decision.reason)
        assert [script.end() for script in job.scripts] == [75, 75]
        assert "trying again in 1 s" in job.scripts[0].output()


async def test_an_older_checkpoint_that_completes_late_does_not_end_the_job(train: Train, tmp_path: Path) -> None:
    """The ranks go on saving that of the agreed step, which counts."""
    async with train(BACKGROUND) as job:
        assert await job.suspend() == PeerRefusal(200, None)
        for script in job.scripts:
            await asyncio.to_thread(script.wait_for_line, "the late one is reported", PATIENCE)
        assert job.phase is Phase.STOPPING
        assert job.served.job(JOB).observed.acknowledgement is None
        (tmp_path / "go").touch()
        await job.ends()
        agreed = job.served.job(JOB).observed.acknowledgement
        assert agreed is not None
        assert agreed.step is not None
        assert agreed.step > 910
        assert f"All ranks have saved a checkpoint of step {agreed.step}." in job.served.job(JOB).decision.reason
        assert "the checkpoint of step 910 is not the one that is asked for" in job.scripts[0].output()


@pytest.mark.parametrize(
    ("end", "kind", "reason"),
    [
        ("raise SystemExit(75)", "left", "Rank 0 has left, without saying that it saved."),
        ("open('/nowhere/at/all')", "failed", "Rank 0 could not save: FileNotFoundError: [Errno 2] "),
    ],
    ids=["an exit", "an exception"],
)
async def test_a_script_that_reports_nothing(train: Train, end: str, kind: str, reason: str) -> None:
    """Its exit may follow a save; an exception that ends it shows that something has failed."""
    async with train(DIES.format(end), ranks=1) as job:
        assert await job.suspend() == PeerRefusal(200, None)
        await job.ends()
        assert reason in job.served.job(JOB).decision.reason
        answer = job.served.job(JOB).observed.acknowledgement
        assert answer is not None
        assert answer.kind == AcknowledgementKind(kind)
        job.scripts[0].end()


HALF_AS_OFTEN = """
    import os, time
    import kubeai.elastic as kubeai

    rank = int(os.environ["RANK"])
    kubeai.init(collective=True)
    kubeai.resumed(900)
    step = 900
    print("training")
    while True:
        time.sleep(0.005)
        step += 1
        if step % 2 == rank and kubeai.should_stop(step):
            kubeai.checkpoint_saved(step)
            kubeai.exit_for_resume()
"""


async def test_parts_of_different_steps_make_no_checkpoint(train: Train) -> None:
    """One rank asks after even steps and the other one after odd ones, so that they stop at different ones."""
    async with train(HALF_AS_OFTEN) as job:
        assert await job.suspend() == PeerRefusal(200, None)
        await job.ends()
        reason = job.served.job(JOB).decision.reason
        assert re.search(
            r"Rank \d could not save: its checkpoint is of step \d+, and that of rank \d of step \d+", reason
        )
        assert [script.end() for script in job.scripts] == [75, 75]


async def test_an_older_sdk_that_reports_an_older_checkpoint_late_is_not_believed(tmp_path: Path) -> None:
    """It stamps each report with the generation of the STOP."""
    async with serving(tmp_path) as served:
        await served.peers.agents(["n0"])
        _, order = await served.peers.running(JOB, ["n0"])
        process = await served.peers.process(order["token"], "n0", 0)
        running = await process.lines.matching(directive="RUN")
        await process.reports("saved", running, step=60)
        assert await served.peers.post(
            "/v1/jobs/suspend", served.peers.tokens.operator("root"), {"job": JOB}
        ) == PeerRefusal(200, None)
        stop = await process.lines.matching(directive="STOP")
        await process.reports("saved", stop, step=40)
        assert served.job(JOB).observed.acknowledgement is None
        await process.reports("saved", stop, step=61)
        await until(lambda: served.job(JOB).decision.phase is Phase.SUSPENDED)
        assert "Rank 0 has saved a checkpoint of step 61." in served.job(JOB).decision.reason


async def test_a_run_that_begins_below_the_last_checkpoint_is_logged(tmp_path: Path) -> None:
    """Its script counts from 0, for example, after it has loaded the checkpoint of step 77."""
    async with serving(tmp_path) as served:
        await served.peers.agents(["n0"])
        _, order = await served.peers.running(JOB, ["n0"])
        process = await served.peers.process(order["token"], "n0", 0)
        running = await process.lines.matching(directive="RUN")
        await process.reports("saved", running, step=77)
        with capture_logs() as lines:
            for step in (0, 77):
                await process.reports("resumed", running, step=step)
        (logged,) = [each for each in lines if each["event"] == "run.resumed_below_checkpoint"]
        assert (logged["saved_step"], logged["step"]) == (77, 0)


SAVES = """
    import atexit, json, os, pathlib, time
    import kubeai.elastic as kubeai

    kubeai.init()
    first, rank = int(os.environ.get("FIRST", "0")), os.environ["RANK"]
    saves = []

    def save(step):
        began = time.monotonic()
        time.sleep(0.1)
        saves.append(time.monotonic() - began)

    def tell():
        pathlib.Path(os.environ["KUBEAI_DIR"], "saves-" + rank).write_text(json.dumps(saves))

    atexit.register(tell)

    def batches():
        while True:
            time.sleep(0.005)
            yield None

    for step, _ in kubeai.steps(batches(), save, first=first, every=40):
        if step == first + 5:
            print("training")
        if step == first + 100:
            print("has saved")
"""


async def test_the_ledger_divides_the_time_of_a_run_by_it(train: Train, tmp_path: Path) -> None:
    """Two workers: what rank 0 says counts for both."""
    async with train(SAVES) as job:
        for script in job.scripts:
            await asyncio.to_thread(script.wait_for_line, "has saved", PATIENCE)
        assert await job.suspend() == PeerRefusal(200, None)
        await job.ends()
        for script in job.scripts:
            script.end()
        seconds = await _ledger(job.served)
    saves = json.loads((tmp_path / "saves-0").read_text())
    assert len(saves) >= 3
    # The last one answers the stop: then the job stops, and saves as part of that. So does one that was due on the way.
    before_the_stop = (2 * sum(saves[:-1]), 2 * sum(saves[:-2]))
    assert any(seconds[Account.SAVING] == pytest.approx(each, rel=0.2) for each in before_the_stop)
    assert seconds[Account.TRAINING] >= 2 * 100 * 0.005
    assert seconds[Account.STARTING] > 0.0
    assert seconds[Account.STOPPING] >= 2 * saves[-1]
    assert Account.REPEATING not in {account for account, spent in seconds.items() if spent > 0.0}


async def _ledger(served: Served) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
    asked = {"since": str(time.time() - 3600.0)}
    async with served.peers.session.get(served.peers.http + "/v1/ledger", headers=headers, params=asked) as answer:
        [seconds] = [job["worker_seconds"] for job in (await answer.json())["jobs"] if job["job"] == JOB]
    return dict(seconds)
