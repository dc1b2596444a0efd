"""`job-supervisor report`: what a manager reads, what an engineer reads, and what is not known."""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from job_supervisor.cli.errors import CliExitCode
from job_supervisor.cli.http_backend import HttpBackend
from supervisor.domain.ids import Host, JobName
from supervisor.domain.ledger import HELD
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.goodput import comparison
from supervisor.observability.views import CapacityView, LedgerJobView, LedgerView, PoolView
from tests.job_supervisor.cli.cli_running import run
from tests.testkit.serving import Served

_H = 3600.0
_HOURS = {"training": 80, "leaving": 1, "stopping": 4, "starting": 5, "missing": 4, "waiting": 6}
_BERT = {account: hours * _H for account, hours in _HOURS.items()}
_QUEUED = {"queued": 30 * _H, "paused": 2 * _H}


def _ledger(monkeypatch: pytest.MonkeyPatch, counted: float, **jobs: Mapping[str, float]) -> None:
    """Has the supervisor answer with this ledger of ten hours."""

    async def ledger(_backend: HttpBackend, *_asked: object, **_by: object) -> LedgerView:
        views = [LedgerJobView(job=JobName(name), worker_seconds=dict(seconds)) for name, seconds in jobs.items()]
        return LedgerView(since=time.time() - 10 * _H, until=time.time(), counted_seconds=counted, jobs=views)

    monkeypatch.setattr(HttpBackend, "ledger", ledger)


@pytest.mark.usefixtures("served")
async def test_one_sentence_and_one_table_whose_shares_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, 10 * _H, small=_QUEUED, bert=_BERT)
    said = await run("report", "--data-dir", tmp_path)
    lines = said.out.splitlines()
    assert lines[0] == (
        "In the last 10 h, jobs wanted 100.0 h of workers and held 90.0 % of them, of which 88.9 % trained: "
        "80.0 % together."
    )
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[3:6]}
    assert rows["bert"] == "100.0 h 80.0 % 1.0 % 4.0 % 5.0 % 4.0 % 6.0 % 0.0 h 0.0 h"
    assert rows["small"] == "0.0 h - - - - - - 30.0 h 2.0 h"
    assert rows["all"] == rows["bert"].replace("0.0 h 0.0 h", "30.0 h 2.0 h")
    assert "JOINING" not in said.out, "nobody joined"
    assert "No process has said" not in said.out
    assert "no supervisor" not in said.out


@pytest.mark.usefixtures("served")
async def test_what_no_process_has_said_is_a_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have trained, and may not."""
    silent = {**_BERT, "training": 60 * _H, "saving": 5 * _H, "unmeasured": 15 * _H}
    _ledger(monkeypatch, 10 * _H, bert=silent)
    said = await run("report", "--data-dir", tmp_path)
    assert "of which 66.7 % to 83.3 % trained: 60.0 % to 75.0 % together." in said.out
    assert "bert 100.0 h 60.0 % 5.0 % 15.0 % 1.0 %" in " ".join(said.out.split())
    assert "No process has said what unmeasured workers did" in said.out
    said = await run("report", "--data-dir", tmp_path, "-o", "json")
    assert said.json["total"]["runtime_goodput"] == pytest.approx({"at_least": 60 / 90, "at_most": 75 / 90})


async def test_a_month_that_is_over(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its days are those of the clock here, and its hours whole ones."""
    asked = list[float | None]()
    read = HttpBackend.ledger

    async def ledger(backend: HttpBackend, since: float, until: float | None, *, by_pool: bool = False) -> LedgerView:
        asked.extend((since, until))
        return await read(backend, since, until, by_pool=by_pool)

    monkeypatch.setattr(HttpBackend, "ledger", ledger)
    await served.peers.agents(["n1"])
    await served.peers.running("resnet", ["n1"])
    said = await run("report", "--data-dir", tmp_path, "--since", "2025-10-01", "--until", "2025-11-01")
    begin, end = (datetime(2025, month, 1).astimezone() for month in (10, 11))
    assert asked == [begin.timestamp(), end.timestamp()]
    assert said.out.startswith(f"In the {(end - begin).days} d until 2025-11-01 00:00, no job wanted workers.")
    said = await run("plan", "resnet", "--data-dir", tmp_path, "--since", "60d", "--until", "30d")
    assert "The ledger has no job resnet in that time." in said.err
    said = await run("report", "--data-dir", tmp_path, "--since", "1h", "--until", "2h")
    assert "`until` must not be before `since`" in said.err
    said = await run("report", "--data-dir", tmp_path, "--since", "yesterday")
    assert said.code == CliExitCode.USAGE


@pytest.mark.usefixtures("served")
async def test_what_nobody_has_counted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, 8 * _H, bert=_BERT)
    said = await run("report", "--data-dir", tmp_path)
    assert "For 2 h of that time no supervisor has counted, and nothing is known." in said.out


@pytest.mark.usefixtures("served")
async def test_one_job_and_the_largest_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, 10 * _H, **{"team/pytorchjob.bert": _BERT, "a": {"training": _H}, "b": {"training": 2 * _H}})
    said = await run("report", "bert", "--data-dir", tmp_path, "-o", "json")
    assert [job["job"] for job in said.json["jobs"]] == ["team/pytorchjob.bert"]
    total = said.json["total"]
    assert total["scheduling_goodput"] == pytest.approx(0.9)
    assert total["effective_training_time_ratio"] == pytest.approx({"at_least": 0.8, "at_most": 0.8})
    assert total["runtime_goodput"] == pytest.approx({"at_least": 80 / 90, "at_most": 80 / 90})
    assert total["worker_seconds"]["queued"] == 0.0
    said = await run("report", "--data-dir", tmp_path, "--limit", "1")
    assert [line.split()[0] for line in said.out.splitlines()[3:6]] == ["team/pytorchjob.bert", "2", "all"]
    said = await run("report", "-n", "team", "--data-dir", tmp_path, "-o", "name")
    assert said.out == "job/team/pytorchjob.bert\n"
    said = await run("report", "nobody", "--data-dir", tmp_path)
    assert (said.code, "The ledger has no job nobody in that time." in said.err) == (CliExitCode.UNKNOWN, True)


def _capacity(monkeypatch: pytest.MonkeyPatch, costs: MeasuredCosts, seconds: float = 10 * _H) -> None:
    """Has the supervisor answer that ten hosts were there, of which one goes each hour for 30 minutes."""

    async def capacity(_backend: HttpBackend, job: JobName, since: float, _until: float | None) -> CapacityView:
        spans = [
            WantedSpan(
                begins=at, ends=at + _H, least=8, most=10, in_process=True, restarts=int(at == since), costs=costs
            )
            for at in (since + hour * _H for hour in range(int(seconds / _H)))
        ]
        stays = [HostStay(host=Host(f"n{number}"), begins=since, ends=since + seconds) for number in range(9)]
        for span in spans:
            gone = span.begins + 1800.0
            stays.append(
                HostStay(host=Host("n9"), begins=span.begins, ends=gone, gone=True, noticed=gone - 120.0, deadline=gone)
            )
        return CapacityView(job=job, since=since, until=since + 1e6, spans=spans, stays=stays)

    monkeypatch.setattr(HttpBackend, "capacity", capacity)


_MEASURED = MeasuredCosts(step_seconds=2.0, checkpoint_seconds=20.0, start_seconds=60.0)


@pytest.mark.usefixtures("served")
async def test_one_job_is_compared_with_other_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First a sentence, then a table, then which costs were measured."""
    _ledger(monkeypatch, 10 * _H, bert=_BERT)
    _capacity(monkeypatch, _MEASURED)
    said = await run("report", "bert", "--data-dir", tmp_path)
    lines = said.out.splitlines()
    assert lines[5] == (
        "Of what it wanted, 80.0 % trained; with the same reclaims it would have been 89.3 % with a termination "
        "handler, 76.6 % with a checkpoint every 10 minutes and 0.0 % with nothing but waiting."
    )
    rows = {line[:42].strip(): " ".join(line[42:].split()) for line in lines[8:15]}
    assert rows["as it was"] == "80.0 % 80.0 h 1 - counted"
    assert rows["all on demand"] == "100.0 % 100.0 h 0 0 simulated"
    assert (
        "Simulated with a step of 2 s, a checkpoint of 20 s and a restart of 60 s (measured), and a change of 2 s "
        in (said.out)
    )
    assert "The simulations cover" not in said.out
    said = await run("report", "bert", "--data-dir", tmp_path, "-o", "json")
    comparison = said.json["comparison"]
    assert comparison["costs"]["restart"] == {"seconds": 60.0, "measured": True}
    assert comparison["costs"]["change"] == {"seconds": 2.0, "measured": False}
    by_policy = {row["policy"]: row for row in comparison["policies"]}
    assert list(by_policy)[:2] == ["as it was", "this supervisor, simulated"]
    shares = [by_policy[name]["effective_training_time_ratio"]["at_least"] for name in by_policy]
    assert shares[1] > shares[2] > shares[4] > shares[5] == 0.0
    assert by_policy["a checkpoint every 10 minutes, and restarts"]["steps_lost"] > 0.0
    _ledger(monkeypatch, 10 * _H, bert={**_BERT, "training": 60 * _H, "unmeasured": 20 * _H})
    said = await run("report", "bert", "--data-dir", tmp_path)
    assert "Of what it wanted, 60.0 % to 80.0 % trained;" in said.out


@pytest.mark.usefixtures("served")
async def test_what_was_not_measured_is_called_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, 10 * _H, bert=_BERT)
    _capacity(monkeypatch, MeasuredCosts(step_seconds=2.0), seconds=5 * _H)
    said = await run("report", "bert", "--data-dir", tmp_path)
    assert (
        "a step of 2 s (measured), and a checkpoint of 5 s, a restart of 30 s and a change of 2 s (assumed)" in said.out
    )
    assert "The simulations cover 50.0 h of what was wanted: of 5 h it is known which hosts were there." in said.out
    _capacity(monkeypatch, MeasuredCosts())
    said = await run("report", "bert", "--data-dir", tmp_path)
    assert (
        "Simulated with a step of 1 s, a checkpoint of 5 s, a restart of 30 s and a change of 2 s (assumed)."
        in said.out
    )


@pytest.mark.usefixtures("served")
async def test_what_would_take_minutes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_WORK", 100)
    _ledger(monkeypatch, 10 * _H, bert=_BERT)
    _capacity(monkeypatch, _MEASURED)
    said = await run("report", "bert", "--data-dir", tmp_path)
    assert "Left out, as it would take minutes: this supervisor, simulated. Choose a shorter time." in said.out
    assert "all on demand" in said.out


@pytest.mark.usefixtures("served")
async def test_a_comparison_that_nobody_can_make_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record of the hosts, from an older supervisor, and of several jobs."""
    _ledger(monkeypatch, 10 * _H, bert=_BERT)
    said = await run("report", "bert", "--data-dir", tmp_path)
    assert "is not known: the record has none of its hosts in that time." in said.out
    said = await run("report", "--data-dir", tmp_path)
    assert "`report JOB` compares one job with other ways to handle the same reclaims," in said.out

    async def older(_backend: HttpBackend, job: JobName, since: float, _until: float | None) -> None:
        del job, since

    monkeypatch.setattr(HttpBackend, "capacity", older)
    said = await run("report", "bert", "--data-dir", tmp_path)
    assert "is not known: this supervisor is older than the command." in said.out


@pytest.mark.usefixtures("served")
async def test_several_jobs_are_summed_if_their_costs_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum names the jobs that are left out, and why."""
    _ledger(monkeypatch, 10 * _H, **{"team/bert": _BERT, "team/resnet": _BERT, "team/silent": _BERT, "other": _BERT})
    _capacity(monkeypatch, _MEASURED)
    alone = (await run("report", "other", "--data-dir", tmp_path, "-o", "json")).json["comparison"]
    measured = HttpBackend.capacity

    async def capacity(backend: HttpBackend, job: JobName, since: float, until: float | None) -> CapacityView | None:
        seen = await measured(backend, job, since, until)
        if seen is None or job != "team/silent":
            return seen
        return msgspec.structs.replace(seen, spans=[replace(each, costs=MeasuredCosts()) for each in seen.spans])

    monkeypatch.setattr(HttpBackend, "capacity", capacity)
    said = await run("report", "-n", "team", "--compare", "--data-dir", tmp_path)
    assert "Of what 2 jobs wanted, 80.0 % trained; with the same reclaims it would have been 89.3 %" in said.out
    assert "Simulated with the step, checkpoint and restart that each job has measured, and with 2 s for a" in said.out
    assert "Jobs that are left out: 1 (no process has measured their step, checkpoint and restart)." in said.out
    summed = (await run("report", "-n", "team", "--compare", "--data-dir", tmp_path, "-o", "json")).json["comparison"]
    assert (summed["jobs"], summed["jobs_left_out"]) == (2, {"unknown": 0, "assumed": 1, "beyond": 0})
    for of_two, of_one in zip(summed["policies"], alone["policies"], strict=True):
        for name in ("wanted", "trained", "restarts"):
            assert of_two[name] == pytest.approx(2 * of_one[name]), (of_one["policy"], name)


@pytest.mark.usefixtures("served")
async def test_a_sum_of_which_nothing_is_known_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, 10 * _H, bert=_BERT, resnet=_BERT)
    said = await run("report", "--compare", "--data-dir", tmp_path)
    assert "is not known: of no job there are both its hosts and its costs." in said.out
    assert "Jobs that are left out: 2 (the record has none of their hosts)." in said.out


async def test_the_comparison_of_a_supervisor_that_serves(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    said = await run("report", "resnet", "--data-dir", tmp_path, "-o", "json")
    rows = {row["policy"]: row for row in said.json["comparison"]["policies"]}
    assert rows["all on demand"]["trained"] == rows["all on demand"]["wanted"] > 0.0
    assert rows["a termination handler with SIGTERM"]["effective_training_time_ratio"] == pytest.approx(
        {"at_least": 1.0, "at_most": 1.0}
    )
    said = await run("report", "resnet", "--data-dir", tmp_path)
    assert "a step of 1 s" in said.out


async def test_the_ledger_of_a_supervisor_that_serves(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    said = await run("report", "--data-dir", tmp_path, "-o", "json")
    [job] = said.json["jobs"]
    assert job["job"] == "resnet"
    assert said.json["counted_seconds"] > 0.0
    said = await run("report", "--data-dir", tmp_path, "--since", "1h")
    assert "no supervisor has counted" in said.out


def _pool(name: str, price_class: str = "spot", went: int = 0, noticed: int = 0, **hours: float) -> PoolView:
    cloud, zone, kind = name.split("/")
    seconds = {account: spent * _H for account, spent in hours.items()}
    return PoolView(
        cloud=cloud,
        zone=zone,
        instance_type=kind,
        price_class=price_class,
        worker_seconds=seconds,
        went=went,
        noticed=noticed,
    )


def _in_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the supervisor answer with two jobs in three pools; of ten hours it does not know the pool."""
    a, b, fixed = "aws/z1/p5", "aws/z2/p5", "aws/z1/c7"
    jobs = [
        LedgerJobView(
            job=JobName("team/pytorchjob.bert"),
            worker_seconds=_BERT,
            pools=[
                _pool(a, went=3, noticed=2, training=40, stopping=4, starting=3),
                _pool(b, training=30, starting=2, leaving=1),
                _pool(fixed, "on_demand"),
            ],
        ),
        LedgerJobView(
            job=JobName("team/mpijob.x"),
            worker_seconds={"training": 10 * _H, "queued": 5 * _H},
            pools=[_pool(a, went=1, noticed=1, training=10)],
        ),
    ]

    async def ledger(_backend: HttpBackend, since: float, _until: float | None, *, by_pool: bool = False) -> LedgerView:
        kept = jobs if by_pool else [LedgerJobView(job=job.job, worker_seconds=job.worker_seconds) for job in jobs]
        return LedgerView(since=since, until=since + 10 * _H, counted_seconds=10 * _H, jobs=kept)

    monkeypatch.setattr(HttpBackend, "ledger", ledger)


@pytest.mark.usefixtures("served")
async def test_what_was_held_in_each_pool_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest first; what is known of no pool has a row, and a sentence that says why."""
    _in_pools(monkeypatch)
    said = await run("report", "--by", "pool", "--data-dir", tmp_path)
    rows = {" ".join(line.split()[:1]): " ".join(line.split()[1:]) for line in said.out.splitlines()[2:8]}
    assert rows == {
        "POOL": "CLASS HELD WENT WITH NOTICE TRAINING LEAVING STOPPING STARTING",
        "aws/z1/p5": "spot 57.0 h 4 3 87.7 % 0.0 % 7.0 % 5.3 %",
        "aws/z2/p5": "spot 33.0 h 0 0 90.9 % 3.0 % 0.0 % 6.1 %",
        "unknown": "unknown 10.0 h 0 0 100.0 % 0.0 % 0.0 % 0.0 %",
        "aws/z1/c7": "on demand 0.0 h 0 0 - - - -",
        "all": "100.0 h 4 3 90.0 % 1.0 % 4.0 % 5.0 %",
    }
    assert "In which pool 10.0 h were held is not known" in said.out
    assert "was in no pool" in said.out
    assert "compares one job" not in said.out
    said = await run("report", "bert", "--by", "pool", "--limit", "1", "--data-dir", tmp_path)
    assert [line.split()[0] for line in said.out.splitlines()[3:6]] == ["aws/z1/p5", "3", "all"]
    said = await run("report", "--by", "pool", "--data-dir", tmp_path, "-o", "json")
    first = said.json["pools"][0]
    assert (first["instance_type"], first["went"], first["went_with_notice"]) == ("p5", 4, 3)
    held = sum(sum(pool["worker_seconds"].values()) for pool in said.json["pools"])
    total = said.json["total"]["worker_seconds"]
    assert held == pytest.approx(sum(total[account] for account in HELD))


@pytest.mark.usefixtures("served")
async def test_the_jobs_of_a_kind_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_pools(monkeypatch)
    said = await run("report", "--by", "kind", "--data-dir", tmp_path)
    assert [line.split()[:3] for line in said.out.splitlines()[2:6]] == [
        ["KIND", "WANTED", "TRAINING"],
        ["pytorchjob", "100.0", "h"],
        ["mpijob", "10.0", "h"],
        ["all", "110.0", "h"],
    ]
    said = await run("report", "--by", "kind", "--data-dir", tmp_path, "-o", "json")
    assert [kind["kind"] for kind in said.json["kinds"]] == ["pytorchjob", "mpijob"]
    assert said.json["kinds"][0]["effective_training_time_ratio"] == pytest.approx({"at_least": 0.8, "at_most": 0.8})
    assert "pools" not in said.json


async def test_the_pools_of_a_supervisor_that_serves(served: Served, tmp_path: Path) -> None:
    """The agents of the test name no machine."""
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    said = await run("report", "--by", "pool", "--data-dir", tmp_path, "-o", "json")
    [pool] = said.json["pools"]
    assert (pool["zone"], pool["price_class"]) == ("", "unknown")
    assert sum(pool["worker_seconds"].values()) > 0.0
