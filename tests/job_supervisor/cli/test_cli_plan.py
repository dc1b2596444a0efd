"""`job-supervisor plan`: the same history with something different."""

from pathlib import Path

import pytest

from job_supervisor.cli import planning
from job_supervisor.cli.errors import CliExitCode
from job_supervisor.cli.http_backend import HttpBackend
from supervisor.domain.ids import Host, JobName
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.observability.views import CapacityView, LedgerJobView, LedgerView
from tests.job_supervisor.cli.cli_running import run
from tests.testkit.serving import Served

_H = 3600.0


@pytest.fixture
def history(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[HostStay]:
    """Ten hours of a job of 8 to 10 workers. Its tenth host goes each hour, and is back half an hour later."""
    del served
    stays = [HostStay(host=Host(f"n{number}"), begins=0.0, ends=10 * _H) for number in range(9)]
    for hour in range(10):
        gone = hour * _H + 1800.0
        stays.append(
            HostStay(host=Host("n9"), begins=hour * _H, ends=gone, gone=True, noticed=gone - 120.0, deadline=gone)
        )

    async def ledger(_backend: HttpBackend, since: float, _until: float | None) -> LedgerView:
        jobs = [
            LedgerJobView(job=JobName(name), worker_seconds={})
            for name in ("team/pytorchjob.bert", "a/mpijob.x", "b/mpijob.x")
        ]
        return LedgerView(since=since, until=since + 10 * _H, counted_seconds=10 * _H, jobs=jobs)

    async def capacity(_backend: HttpBackend, job: JobName, since: float, _until: float | None) -> CapacityView:
        del since
        costs = MeasuredCosts(step_seconds=2.0, checkpoint_seconds=20.0)
        span = WantedSpan(begins=0.0, ends=10 * _H, least=8, most=10, in_process=False, costs=costs)
        return CapacityView(job=job, since=0.0, until=1e6, spans=[span] if stays else [], stays=stays)

    monkeypatch.setattr(HttpBackend, "ledger", ledger)
    monkeypatch.setattr(HttpBackend, "capacity", capacity)
    return stays


@pytest.mark.usefixtures("history")
async def test_each_change_has_a_row_and_so_have_all_together(tmp_path: Path) -> None:
    said = await run("plan", "bert", "--data-dir", tmp_path, "--min-workers", "10", "--in-process", "-o", "json")
    rows = {row["if"]: row for row in said.json["rows"]}
    assert list(rows) == [
        "as it is",
        "a minimum of 10 workers",
        "changes in process",
        "a minimum of 10 workers and changes in process",
    ]
    shares = {name: row["effective_training_time_ratio"] for name, row in rows.items()}
    assert shares["a minimum of 10 workers"] < 0.6 < shares["as it is"] < shares["changes in process"]
    assert (said.json["gone"], said.json["gone_suddenly"], said.json["checkpoint_interval"]) == (10, 0, None)
    assert said.json["measured"] == ["step", "checkpoint"]
    said = await run("plan", "bert", "--data-dir", tmp_path, "--in-process")
    assert "and a change of 2 s (assumed), unless a row says otherwise." in said.out


@pytest.mark.usefixtures("history")
async def test_values_of_one_option_are_compared(tmp_path: Path) -> None:
    said = await run("plan", "bert", "--data-dir", tmp_path, "--checkpoint-every", "1m", "--checkpoint-every", "1h")
    told = " ".join(said.out.split())
    assert "In 10 h of this job's own history hosts went 10 times, 0 of them with less notice" in told
    assert "a checkpoint every 1 min" in told
    assert "a checkpoint every 1 h" in told
    assert "None went too suddenly to save" in told
    assert "a step of 2 s (measured), a checkpoint of 20 s (measured) and a restart of 30 s (assumed)" in told
    assert "IF IT HAD BEEN" in said.out


async def test_for_sudden_losses_the_best_interval_is_named_and_tried(history: list[HostStay], tmp_path: Path) -> None:
    history[:] = [
        HostStay(host=each.host, begins=each.begins, ends=each.ends, gone=each.gone) if each.gone else each
        for each in history
    ]
    said = await run("plan", "bert", "--data-dir", tmp_path, "-o", "json")
    assert said.json["gone_suddenly"] == 10
    assert said.json["checkpoint_interval"] == pytest.approx((2 * 3600 * 20) ** 0.5)
    as_it_is, best = said.json["rows"]
    assert best["steps_lost"] < as_it_is["steps_lost"]
    said = await run("plan", "bert", "--data-dir", tmp_path)
    assert "between two sudden losses times 20 s for a checkpoint (Young, 1974)." in said.out


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("nobody",), CliExitCode.UNKNOWN, "The ledger has no job nobody in that time."),
        (("x",), CliExitCode.USAGE, "x may be a/mpijob.x and b/mpijob.x: name one in full."),
        (("bert", "--max-workers", "11"), CliExitCode.USAGE, "wanted 10 workers at most: of more hosts nothing is"),
    ],
)
async def test_what_cannot_be_simulated_is_said(
    tmp_path: Path, arguments: tuple[str, ...], code: CliExitCode, why: str
) -> None:
    said = await run("plan", *arguments, "--data-dir", tmp_path)
    assert (said.code, why in said.err) == (code, True)


@pytest.mark.usefixtures("history")
async def test_saves_are_work_as_well(tmp_path: Path) -> None:
    """Each is a decision, and a job may say that its checkpoints take no time."""
    said = await run("plan", "bert", "--data-dir", tmp_path, "--checkpoint-every", "1s", "--checkpoint-every", "1s")
    assert said.code == CliExitCode.DONE
    many = [word for _ in range(60) for word in ("--checkpoint-every", "1s")]
    said = await run("plan", "bert", "--data-dir", tmp_path, *many)
    assert (said.code, "would take minutes" in said.err) == (CliExitCode.USAGE, True)


async def test_nothing_is_made_up_of_a_job_without_hosts_or_of_too_much(
    history: list[HostStay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MOST_WORK", 100)
    said = await run("plan", "bert", "--data-dir", tmp_path)
    assert (said.code, "would take minutes" in said.err) == (CliExitCode.USAGE, True)
    history.clear()
    said = await run("plan", "bert", "--data-dir", tmp_path)
    assert (said.code, "none of the hosts of bert" in said.err) == (CliExitCode.UNKNOWN, True)

    async def older(_backend: HttpBackend, job: JobName, since: float, _until: float | None) -> None:
        del job, since

    monkeypatch.setattr(HttpBackend, "capacity", older)
    said = await run("plan", "bert", "--data-dir", tmp_path)
    assert (said.code, "older than this command" in said.err) == (CliExitCode.NOT_NOW, True)
