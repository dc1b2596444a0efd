"""The report's page compares jobs with other policies: on request, in a child process, one at a time."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from job_supervisor.cli import compared as cli
from job_supervisor.cli.output import Table
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.ids import Host, JobName
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.domain.worker_time import WorkerTime
from supervisor.goodput.__main__ import MEMORY_BYTES
from supervisor.goodput.comparison import Comparison, RecordedJob, RecordedJobs, compare
from supervisor.observability.page import comparisons
from supervisor.observability.page.comparison_contents import comparison_contents
from supervisor.observability.page.comparisons import (
    ComparisonError,
    ComparisonQuestion,
    EncodedJobs,
    PageComparison,
    PageComparisons,
    simulate_apart,
)
from supervisor.observability.record.database import RecordError
from supervisor.observability.views import CapacityView, LedgerJobView, LedgerView
from tests.supervisor.observability.page.page_world import NODES, get
from tests.testkit.loops import AsyncioPolicy, UvloopPolicy
from tests.testkit.serving import Served
from tests.testkit.waiting import until

HOUR = 3600.0
SPENT = {"training": 5 * HOUR, "unmeasured": 1 * HOUR, "missing": 3 * HOUR}
BERT, RESNET = ComparisonQuestion(JobName("bert"), HOUR), ComparisonQuestion(JobName("resnet"), HOUR)


def seen(job: str = "bert") -> CapacityView:
    """Three hosts for three hours, of which one goes with a notice in the second."""
    costs = MeasuredCosts(step_seconds=2.0, checkpoint_seconds=20.0, start_seconds=60.0)
    span = WantedSpan(begins=0.0, ends=3 * HOUR, least=1, most=3, in_process=True, restarts=2, costs=costs)
    stays = [
        HostStay(host=Host("a"), begins=0.0, ends=3 * HOUR),
        HostStay(host=Host("b"), begins=0.0, ends=3 * HOUR),
        HostStay(host=Host("c"), begins=0.0, ends=1.5 * HOUR, noticed=1.5 * HOUR - 120.0, gone=True),
        HostStay(host=Host("c"), begins=2 * HOUR, ends=3 * HOUR),
    ]
    return CapacityView(job=JobName(job), since=0.0, until=3 * HOUR, spans=[span], stays=stays)


JOBS = RecordedJobs(jobs=[RecordedJob.of(seen(), WorkerTime(SPENT))])
GIVEN = EncodedJobs(msgspec.json.encode(JOBS))
_SET_PRIORITY = os.setpriority


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves processes the priority of the tests: with the lowest one they would wait minutes beside other tests."""
    monkeypatch.setattr(os, "setpriority", lambda *_: None)


async def _spent(_since: float, _until: float) -> LedgerView:
    jobs = [LedgerJobView(job=JobName(name), worker_seconds=SPENT) for name in ("bert", "resnet")]
    return LedgerView(since=0.0, until=3 * HOUR, counted_seconds=3 * HOUR, jobs=jobs)


async def _capacity(job: JobName, _since: float, _until: float) -> CapacityView:
    return seen(job)


@dataclass(slots=True)
class HandClock:
    """A clock that a test sets."""

    seconds: float = 1000.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


@dataclass(slots=True)
class HeldSimulation:
    """A simulation that ends when the test lets it."""

    given: list[RecordedJobs] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, given: EncodedJobs) -> bytes:
        self.given.append(msgspec.json.decode(given, type=RecordedJobs))
        await self.go.wait()
        return msgspec.json.encode(compare(self.given[-1]))


def page_comparisons(
    simulate: Callable[[EncodedJobs], Awaitable[bytes]] | None = None, clock: HandClock | None = None
) -> PageComparisons:
    return PageComparisons(_spent, _capacity, clock or HandClock(), Bulkhead(Clock()), simulate)  # type: ignore[arg-type]  # As far as it is used.


@asynccontextmanager
async def running(comparisons_of: PageComparisons) -> AsyncIterator[None]:
    task = asyncio.create_task(comparisons_of.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _answered(by: PageComparisons, question: ComparisonQuestion) -> PageComparison:
    await until(lambda: not by.of(question).running, "there is an answer")
    return by.of(question)


async def test_a_comparison_is_computed_once_and_kept_for_some_minutes() -> None:
    clock, simulation = HandClock(), HeldSimulation()
    simulation.go.set()
    shown = page_comparisons(simulation, clock)
    async with running(shown):
        assert shown.of(BERT) == PageComparison()
        found = await _answered(shown, BERT)
        assert (found.found, found.at) == (compare(JOBS), 1000.0)
        clock.seconds += comparisons.KEPT_SECONDS - 1.0
        assert shown.of(BERT) == found
        assert len(simulation.given) == 1
        clock.seconds += 2.0
        assert shown.of(BERT).running
        assert (await _answered(shown, BERT)).at == clock.seconds


async def test_one_is_computed_at_a_time_and_nobody_is_queued() -> None:
    """A viewer who does not come back costs nothing."""
    simulation = HeldSimulation()
    shown = page_comparisons(simulation)
    async with running(shown):
        assert not shown.of(BERT).behind
        assert (shown.of(RESNET), shown.of(BERT)) == (PageComparison(behind=True), PageComparison())
        simulation.go.set()
        await _answered(shown, BERT)
        assert len(simulation.given) == 1
        assert not (await _answered(shown, RESNET)).trouble


async def test_all_jobs_are_summed() -> None:
    shown = page_comparisons()
    async with running(shown):
        found = (await _answered(shown, ComparisonQuestion(JobName(""), HOUR))).found
    assert found is not None
    alone = compare(JOBS)
    assert found.jobs == 2
    assert found.rows[1].trained == pytest.approx(2 * alone.rows[1].trained)


async def test_no_more_answers_are_kept_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "MAX_KEPT", 1)
    simulation = HeldSimulation()
    simulation.go.set()
    shown = page_comparisons(simulation)
    async with running(shown):
        await _answered(shown, BERT)
        await _answered(shown, RESNET)
        assert shown.of(BERT).running


async def test_what_goes_wrong_is_said_and_kept_and_the_next_one_is_computed() -> None:
    """A record that cannot be read, a process that fails, one that writes something else, and a fault of our own."""
    answers: list[bytes | Exception] = [RecordError("no disk"), ComparisonError("it failed"), b"{}", KeyError("x")]

    async def simulate(_given: EncodedJobs) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shown = page_comparisons(simulate)
    said = list[str]()
    async with running(shown):
        for number in range(4):
            said.append((await _answered(shown, replace(BERT, seconds=HOUR * (number + 1)))).trouble)
        assert shown.of(BERT).trouble == said[0]
    assert said == [
        "the record cannot be read now: no disk",
        "it failed",
        "the process that simulates has written something else",
        "a fault in it is in the supervisor's log",
    ]


async def test_the_child_process_finds_what_the_command_finds() -> None:
    """The page and the command print the same figures of one record."""
    shown = page_comparisons()
    async with running(shown):
        found = (await _answered(shown, BERT)).found
    assert found is not None
    blocks, _ = await cli.compared(JOBS)
    [table] = [each for each in blocks if isinstance(each, Table)]
    page = comparison_contents(found)
    rows = [
        (each.policy, each.training, each.trained, each.restarts, each.steps_lost or "-", each.how)
        for each in page.rows
    ]
    assert rows == table.rows
    assert [page.summary, *page.notes] == [each for each in blocks if isinstance(each, str) and each]
    assert rows[0] == ("as it was", "55.6 % to 66.7 %", "5.0 h", "2", "-", "counted")
    bars = [[(part.key, round(part.length, 1)) for part in each.bar] for each in (page.rows[0], page.rows[-1])]
    assert bars == [[("trained", 55.6), ("unmeasured", 11.1), ("lacked", 33.3)], [("trained", 100.0)]]


async def _started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> Path:
    """Has a script in the place of the simulation; returns the file in which it writes its process id."""
    script, wrote = tmp_path / "python", tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ > {wrote}.part && mv {wrote}.part {wrote}\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return wrote


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_a_process_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    await _started(monkeypatch, tmp_path, "exec sleep 600")
    # A busy machine may not have run the script by the end of the limit: it writes no process id then.
    started = list[int]()
    monkeypatch.setattr(os, "setpriority", lambda _which, pid, _niceness: started.append(pid))
    monkeypatch.setattr(comparisons, "LIMIT_SECONDS", 0.5)
    with pytest.raises(ComparisonError, match=r"it took more than 0 s; choose a shorter time"):
        await simulate_apart(GIVEN)
    [pid] = started
    assert _is_gone(pid)


async def test_a_process_that_is_killed_before_anything_is_written_to_it_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its pipe is closed then, and uvloop refuses to write to it, with an error of no process."""
    start = asyncio.create_subprocess_exec

    async def started(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*arguments, **options)
        assert process.stdin is not None
        await until(process.stdin.is_closing, "its pipe is closed")
        return process

    await _started(monkeypatch, tmp_path, "kill -9 $$")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    with pytest.raises(ComparisonError, match="was killed"):
        await simulate_apart(GIVEN)


async def test_the_process_has_the_lowest_priority_and_ends_with_the_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await _started(monkeypatch, tmp_path, "exec sleep 600")
    started = list[int]()

    def noted(which: int, pid: int, niceness: int) -> None:
        _SET_PRIORITY(which, pid, niceness)
        started.append(pid)

    monkeypatch.setattr(os, "setpriority", noted)
    task = asyncio.create_task(simulate_apart(GIVEN))
    # The priority itself may be that of the tests, from the beginning: the process is being started then.
    [pid] = await until(lambda: started, "its priority is set")
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _is_gone(pid)


def _children() -> set[str]:
    """The child processes of this one, those that wait to be reaped included."""
    return {pid for each in Path("/proc/self/task").iterdir() for pid in (each / "children").read_text().split()}


@pytest.mark.parametrize("policy", [AsyncioPolicy(), UvloopPolicy()], ids=["asyncio", "uvloop"])
def test_a_comparison_that_is_cancelled_leaves_no_process(
    policy: AsyncioPolicy | UvloopPolicy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At whatever moment, also while the process is being started."""
    before = _children()

    async def cancelled(turns: int) -> set[str]:
        await _started(monkeypatch, tmp_path, "exec sleep 600")
        task = asyncio.create_task(simulate_apart(GIVEN))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return _children() - before

    with asyncio.Runner(loop_factory=policy.new_event_loop) as runner:
        assert [runner.run(cancelled(turns)) for turns in range(12)] == [set()] * 12


async def test_a_process_that_cannot_be_started_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ComparisonError, match="no process can be started: No such file"):
        await simulate_apart(GIVEN)


async def test_a_process_that_writes_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrote = await _started(monkeypatch, tmp_path, "exec yes")
    with pytest.raises(ComparisonError, match="more than 65536 bytes"):
        await simulate_apart(GIVEN)
    assert _is_gone(int(wrote.read_text()))


async def test_a_process_that_fails_says_why_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """And viewers are told no more than that it is there: what it says may be of a tenant's making."""
    with pytest.raises(ComparisonError, match=r"has failed with 1; why is in the supervisor's log"):
        await simulate_apart(EncodedJobs(b'{"jobs": 1}'))
    assert "msgspec.ValidationError" in capfd.readouterr().err


_NEEDS_MORE = """
from pathlib import Path
from supervisor.goodput import __main__ as apart

def compared(given):
    Path(__file__).with_name("score").write_text(Path("/proc/self/oom_score_adj").read_text())
    return bytes(2 * apart.MEMORY_BYTES)

apart.compared = compared
apart.main()
"""


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        (f"exec {sys.executable} {{script}}", "it needs more memory than it may have; choose a shorter time"),
        ("kill -9 $$", "the process that simulates was killed, such as for want of memory in the pod"),
    ],
)
async def test_a_process_without_enough_memory_is_told_on_the_page(
    code: str, trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It cannot take more than its limit, and the supervisor goes on: the next comparison is computed."""
    (tmp_path / "needs_more.py").write_text(_NEEDS_MORE)
    shown = page_comparisons()
    async with running(shown):
        with monkeypatch.context() as replaced:
            await _started(replaced, tmp_path, code.format(script=tmp_path / "needs_more.py"))
            assert (await _answered(shown, BERT)).trouble == trouble
        assert (await _answered(shown, RESNET)).found is not None
    assert "Traceback" not in capfd.readouterr().err
    if "script" in code:
        assert (tmp_path / "score").read_text().strip() == "1000"


def test_the_charts_limit_of_memory_has_room_for_one_beside_the_largest_supervisor() -> None:
    """With 5,000 agents and 10,000 streams a supervisor took 950 MiB."""
    values = yaml.safe_load(Path("charts/elastic-job-supervisor/values.yaml").read_text("utf-8"))
    limit = values["supervisor"]["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert int(limit.removesuffix("Gi")) * 1024**3 >= 950 * 1024**2 + MEMORY_BYTES


async def test_a_process_inherits_no_secret(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JOB_SUPERVISOR_SECRET", "x")
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    with pytest.raises(ComparisonError):
        await simulate_apart(EncodedJobs(b""))
    assert "import " not in capfd.readouterr().err.partition("Traceback")[0]


async def test_a_page_is_loaded_until_it_has_the_comparison(served: Served) -> None:
    """Without scripts by itself; afterwards it stays as it is."""
    await served.peers.agents(NODES)
    await served.peers.running("train", NODES)
    viewer = served.peers.tokens.viewer()
    path = "/status/report?job=train&span=24h"

    async def offered() -> bool:
        page = await get(served.peers, path, token=viewer)
        return "Compare with other policies" in page.seen and 'http-equiv="refresh"' not in page.text

    await until(offered, "the page has the ledger")
    page = await get(served.peers, f"{path}&compare=yes", token=viewer)
    assert "The policies are being simulated" in page.seen
    assert '<noscript><meta http-equiv="refresh"' in page.text
    assert "data-poll" in page.text

    async def compared() -> bool:
        return "all on demand 100.0 %" in (await get(served.peers, f"{path}&compare=yes", token=viewer)).seen

    await until(compared, "the comparison is there")
    page = await get(served.peers, f"{path}&compare=yes", token=viewer)
    assert 'http-equiv="refresh"' not in page.text
    assert "data-poll" not in page.text
    assert "Of what it wanted" in page.seen
    assert "(assumed)." in page.seen


async def test_a_job_without_hosts_in_the_record_is_not_compared() -> None:
    found = compare(RecordedJobs(jobs=[replace(JOBS.jobs[0], spans=[], stays=[])]))
    shown = comparison_contents(found)
    assert (shown.rows, shown.notes) == ([], [])
    assert shown.summary == (
        "What other policies would have trained is not known: the record has none of its hosts in that time."
    )
    assert isinstance(found, Comparison)
