"""`job-supervisor report`: what a manager reads, what an engineer reads, and what is not known."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from job_supervisor.cli.errors import CliExitCode
from job_supervisor.cli.http_backend import HttpBackend
from supervisor.domain.ids import JobName
from supervisor.observability.views import LedgerJobView, LedgerView
from tests.job_supervisor.cli.cli_running import run
from tests.testkit.serving import Served

_H = 3600.0
_HOURS = {"training": 80, "leaving": 1, "stopping": 4, "starting": 5, "missing": 4, "waiting": 6}
_BERT = {account: hours * _H for account, hours in _HOURS.items()}
_QUEUED = {"queued": 30 * _H, "paused": 2 * _H}


def _ledger(monkeypatch: pytest.MonkeyPatch, counted: float, **jobs: Mapping[str, float]) -> None:
    """Has the supervisor answer with this ledger of ten hours."""

    async def ledger(_backend: HttpBackend, since: float) -> LedgerView:  # noqa: ARG001 - the answer has its own
        views = [LedgerJobView(job=JobName(name), worker_seconds=dict(seconds)) for name, seconds in jobs.items()]
        return LedgerView(since=7200.0, until=7200.0 + 10 * _H, counted_seconds=counted, jobs=views)

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


async def test_the_ledger_of_a_supervisor_that_serves(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    said = await run("report", "--data-dir", tmp_path, "-o", "json")
    [job] = said.json["jobs"]
    assert job["job"] == "resnet"
    assert said.json["counted_seconds"] > 0.0
    said = await run("report", "--data-dir", tmp_path, "--since", "1h")
    assert "no supervisor has counted" in said.out
