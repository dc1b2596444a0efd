"""The parts of the benchmarks that only compute: percentiles, delays, results, tables."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.clients.agents import NoticeSent
from benchmarks.clients.streams import DirectiveReceived
from benchmarks.delays import DelayedPeer, MissingLineError, fanout_delays, noticed_delays, rank_zero_delays
from benchmarks.harness.decisions import LoggedDecision, decisions
from benchmarks.results import (
    Figure,
    ResultMachine,
    Results,
    ResultTarget,
    Row,
    ScenarioOutcome,
    Unit,
    UnreadableResultsError,
    read,
    updated,
    write,
)
from benchmarks.scenarios import recording
from benchmarks.scenarios.metrics import compared
from benchmarks.summary import NoSamplesError, summarize
from benchmarks.table import BEGIN, END, MissingMarkersError, formatted, page
from supervisor.goodput.comparison import MOST_WORK, work
from supervisor.goodput.rebuilt import rebuilt

PEERS = [DelayedPeer("a", "n0", 0), DelayedPeer("a", "n1", 1)]
STOPPED = [LoggedDecision(10.0, "a", "Stopping", 2), LoggedDecision(12.0, "a", "Suspended", 3)]


def results(value: float) -> Results:
    """One figure that should be at most 0.15 s."""
    figure = Figure(label="p99", value=value, unit=Unit.SECONDS, target=ResultTarget(at_most=0.15, why="it is slow."))
    outcome = ScenarioOutcome(
        scenario="s", title="Title", method="Method.", rows=(Row(case="case", figures=(figure,)),)
    )
    return Results(
        machine=ResultMachine(cores=2, cpu="C", memory_bytes=2**30, python="3"), short=False, outcomes=(outcome,)
    )


def test_percentiles_are_samples_that_were_measured() -> None:
    """Of 200 samples, 198 are at most the p99."""
    summary = summarize(float(number) for number in range(200, 0, -1))
    assert (summary.count, summary.p50, summary.p99, summary.maximum) == (200, 100.0, 198.0, 200.0)


def test_one_sample_is_every_percentile() -> None:
    summary = summarize([3.0])
    assert (summary.p50, summary.p99, summary.maximum) == (3.0, 3.0, 3.0)


def test_no_samples_are_an_error() -> None:
    with pytest.raises(NoSamplesError):
        summarize([])


def test_a_stop_counts_from_the_decision_that_told_the_process() -> None:
    """Rank 0 from the STOP, the others from the suspension; repeated lines count once."""
    seen = [
        DirectiveReceived(10.25, 0, "STOP", 2, ""),
        DirectiveReceived(12.5, 1, "STOP", 2, ""),
        DirectiveReceived(13.0, 1, "STOP", 3, ""),
    ]
    assert fanout_delays(STOPPED, seen, PEERS) == [0.25, 0.5]


def test_a_checkpoint_counts_at_all_that_go_on() -> None:
    """A process on the excluded host is told to leave in its own time."""
    decided = [LoggedDecision(5.0, "a", "Shrinking", 4)]
    seen = [DirectiveReceived(5.5, 0, "CHECKPOINT", 4, ""), DirectiveReceived(5.1, 1, "LEAVE", 4, "")]
    assert fanout_delays(decided, seen, PEERS) == [0.5]


def test_a_line_that_never_came_fails_the_run() -> None:
    with pytest.raises(MissingLineError, match="stream 1"):
        fanout_delays(STOPPED, [DirectiveReceived(10.1, 0, "STOP", 2, "")], PEERS)


def test_the_path_to_rank_zero_begins_with_the_notice_that_meant_stop() -> None:
    sent = [NoticeSent("n1", 3.0, 3.1), NoticeSent("n0", 1.0, 1.1)]
    seen = [DirectiveReceived(3.5, 0, "STOP", 2, "")]
    assert rank_zero_delays(sent, seen, PEERS, spare=1) == [0.5]


def test_a_notice_counts_on_its_own_node() -> None:
    seen = [
        DirectiveReceived(1.2, 0, "RUN", 1, "metadata/n1/uid-n1#1"),
        DirectiveReceived(1.5, 1, "RUN", 1, "metadata/n1/uid-n1#1"),
    ]
    assert noticed_delays([NoticeSent("n1", 1.0, 1.0)], seen, PEERS) == [0.5]


def test_decisions_are_read_from_a_log_with_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = {"event": "job.decided", "timestamp": "2026-01-01T00:00:00.5Z", "job": "a", "phase": "Running"}
    log.write_bytes(b"Traceback:\n" + msgspec.json.encode({**line, "generation": 3}) + b"\n")
    [decided] = decisions(log)
    assert (decided.job, decided.phase, decided.generation) == ("a", "Running", 3)


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    write(tmp_path / "made" / "results.json", results(0.1))
    assert read(tmp_path / "made" / "results.json") == results(0.1)


def test_a_scenario_that_is_measured_again_takes_its_place() -> None:
    """All of its tables do, and a new scenario stands where its name has its place; the others stay."""

    def run(*tables: str, method: str) -> Results:
        outcomes = [ScenarioOutcome(scenario=table, title="", method=method, rows=()) for table in tables]
        return replace(results(0.1), outcomes=tuple(outcomes))

    before = run("a", "b", "b rows", "d", method="before")
    again = updated(before, run("b", "c", method="again"), ["a", "b", "c", "d"])
    assert [(each.scenario, each.method) for each in again.outcomes] == [
        ("a", "before"),
        ("b", "again"),
        ("c", "again"),
        ("d", "before"),
    ]


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 99}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(UnreadableResultsError):
        read(tmp_path / "results.json")


def test_a_target_stands_beside_its_figure() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert "| case | 100 ms (≤ 150 ms) |" in page(text, results(0.1))
    missed = page(text, results(0.2))
    assert "| case | 200 ms (**not** ≤ 150 ms) |" in missed
    assert "Not met, case, p99: it is slow." in missed


def test_a_page_is_written_again_in_the_same_place() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter"
    once = page(text, results(0.1))
    assert page(once, results(0.1)) == once
    assert (once.startswith("before\n"), once.endswith("\nafter"), "old" in once) == (True, True, False)


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(MissingMarkersError):
        page("something", results(0.1))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, Unit.SECONDS, "12.3 ms"),
        (2.5, Unit.SECONDS, "2.5 s"),
        (19.94, Unit.NANOSECONDS, "19.9 ns"),
        (12 * 1024, Unit.BYTES, "12.0 KiB"),
        (96 * 2**20, Unit.BYTES, "96.0 MiB"),
        (0.01, Unit.CORES, "1 %"),
    ],
)
def test_figures_have_a_unit_that_suits_them(value: float, unit: Unit, text: str) -> None:
    assert formatted(Figure(label="", value=value, unit=unit)) == text


def test_medians_are_compared() -> None:
    def rows(*values: float) -> list[Row]:
        figures = [Figure(label="p50", value=value, unit=Unit.SECONDS) for value in values]
        return [Row(case="storm", figures=(figure,)) for figure in figures]

    before, after, ratio = compared("p50", rows(1.0, 2.0, 9.0), rows(3.0, 4.0, 5.0)).figures
    assert (before.value, after.value, ratio.value) == (2.0, 4.0, 2.0)


def test_the_comparison_beside_a_storm_simulates_every_policy() -> None:
    """It is as large as one may be of which no policy is left out."""
    job = recording.recorded_job()
    cases = rebuilt(job.spans, job.stays, job.since, job.until)
    assert MOST_WORK / 2 < work(cases) <= MOST_WORK
