"""`job-supervisor plan`: the same history with something different."""

from pathlib import Path

import pytest

from job_supervisor.cli import planning
from job_supervisor.cli.errors import CliExitCode
from job_supervisor.cli.http_backend import HttpBackend
from supervisor.domain.ids import Host, JobName
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.observability.views import CapacityView, LedgerJobView, LedgerView, PoolCapacityView
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


def _pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the supervisor answer that hosts of `a/b/few` went twice, and those of other pools often."""

    async def pool_capacity(_backend: HttpBackend, pool: str, since: float, _until: float | None) -> PoolCapacityView:
        del since
        often = 2 if pool == "a/b/few" else 20
        stays = [
            HostStay(host=Host("x"), begins=hour * _H, ends=hour * _H + 600.0, gone=True, noticed=hour * _H + 480.0)
            for hour in range(often)
        ]
        return PoolCapacityView(pool=pool, since=0.0, until=30 * _H, stays={JobName("team/pytorchjob.gpt"): stays})

    monkeypatch.setattr(HttpBackend, "pool_capacity", pool_capacity)


@pytest.mark.usefixtures("history")
async def test_another_pool_has_a_row_and_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosts last ten minutes, of which an hour later another one comes; with notices ahead they are no better."""
    _pools(monkeypatch)
    said = await run("plan", "bert", "--data-dir", tmp_path, "--pool", "a/b/c", "--lead", "30s", "-o", "json")
    shares = {row["if"]: row["effective_training_time_ratio"] for row in said.json["rows"]}
    assert list(shares) == [
        "as it is",
        "notices 30 s ahead",
        "hosts of a/b/c",
        "notices 30 s ahead and hosts of a/b/c",
    ]
    assert shares["hosts of a/b/c"] < 0.3 < shares["as it is"]
    assert said.json["pools"] == [{"pool": "a/b/c", "hosts": 20, "went": 20, "another_came": 19}]
    said = await run("plan", "bert", "--data-dir", tmp_path, "--pool", "a/b/c")
    assert (
        "Hosts of a/b/c are drawn at random from the 20 that were there for jobs: 20 of them went, and 19 times "
        "another one came." in said.out
    )


@pytest.mark.usefixtures("history")
async def test_a_pool_of_which_too_little_is_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pools(monkeypatch)
    said = await run("plan", "bert", "--data-dir", tmp_path, "--pool", "a/b/few")
    assert (said.code, said.err.count("went 2 times in that time: it takes 10 times")) == (CliExitCode.UNKNOWN, 1)


async def test_a_pool_is_asked_of_a_supervisor_that_serves(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    said = await run("plan", "resnet", "--data-dir", tmp_path, "--pool", "aws/a/p5")
    assert (said.code, "went 0 times in that time" in said.err) == (CliExitCode.UNKNOWN, True)
    said = await run("plan", "resnet", "--data-dir", tmp_path, "--pool", "p5")
    assert "a capacity pool is named CLOUD/ZONE/TYPE" in said.err


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
