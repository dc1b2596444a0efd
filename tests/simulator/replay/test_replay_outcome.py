import json
from dataclasses import replace
from pathlib import Path

from simulator.events import JobEvent, JobEventKind
from simulator.guarantees import GuaranteeCosts, observed_costs, timed_checkpoint
from simulator.judge import Expectations, judge
from simulator.outcome import ReplayOutcome, lines, measure_delay, shortcomings, table, write_json
from simulator.verdict import Figures, GroupMeaning, NoticeGroup, ReplayVerdict

COSTS = GuaranteeCosts(step=0.2, checkpoint=0.1)


def figures() -> Figures:
    empty = judge([], Expectations(1, "", 1)).figures
    return replace(empty, groups=(NoticeGroup("group-1", GroupMeaning.SHRINK, ("node1",), 1, (1.5,)),))


def outcome(*wrong: str, late: float = 0.0) -> ReplayOutcome:
    return ReplayOutcome("an act", ReplayVerdict(figures(), ()), wrong, COSTS, 7.5, late, 12.0)


def test_the_judges_findings_are_shortcomings() -> None:
    verdict = judge([], Expectations(1, "", 1))
    assert list(shortcomings(verdict, COSTS, 7.5)) == ["unfinished: step 1 was never reached"]


def test_a_lead_that_was_too_short_after_all_is_a_shortcoming() -> None:
    """Judged by what steps and checkpoints did take, not by what they were meant to."""
    verdict = ReplayVerdict(figures(), ())
    (line,) = shortcomings(verdict, GuaranteeCosts(step=4.0, checkpoint=2.0), 7.5)
    assert "7.5 s was below" in line


def test_an_overloaded_machine_is_named_but_excuses_nothing() -> None:
    """What failed stays failed; the reader is told that the machine may be the reason."""
    assert not outcome("group split", late=3.0).ok
    assert len(list(lines(outcome("group split", late=3.0)))) == 2
    assert len(list(lines(outcome("group split", late=0.1)))) == 1
    assert list(lines(outcome(late=3.0))) == []


async def test_strain_sees_a_blocked_machine() -> None:
    """How late the clock was looked at is what others were late as well."""
    async with measure_delay() as found:
        pass
    assert found.longest < 0.5


def test_the_result_for_machines_has_every_figure(tmp_path: Path) -> None:
    """Whether all is well stands at the top; an act that broke off has no verdict."""
    broken = ReplayOutcome("another", None, ("the job ended",), COSTS, 7.5, 0.0, 3.0)
    write_json(tmp_path / "result.json", [outcome(), broken])
    result = json.loads((tmp_path / "result.json").read_text())
    assert [scenario["ok"] for scenario in result["scenarios"]] == [True, False]
    assert not result["ok"]
    assert result["scenarios"][0]["verdict"]["figures"]["groups"][0]["meaning"] == "shrink"
    assert result["scenarios"][1]["verdict"] is None


def test_the_table_has_a_row_for_every_act() -> None:
    assert table([outcome(), replace(outcome("x"), verdict=None)]).row_count == 2


def test_a_checkpoint_is_timed_by_writing_it(tmp_path: Path) -> None:
    assert 0 < timed_checkpoint(tmp_path) < 5


def test_costs_are_taken_from_what_happened() -> None:
    """The median step of rank 0 within a ring, and the time from a flag to its checkpoint."""
    steps = [
        JobEvent(t, JobEventKind.STEP_APPLIED, {"run": 1, "epoch": epoch, "rank": rank, "step": 0})
        for t, epoch, rank in [(0.0, 1, 0), (0.2, 1, 1), (1.0, 1, 0), (2.0, 1, 0), (60.0, 2, 0), (61.0, 2, 0)]
    ]
    flag = JobEvent(70.0, JobEventKind.FLAG_SEEN, {"run": 1, "rank": 0})
    saved = [JobEvent(t, JobEventKind.CHECKPOINT_SAVED, {"run": 1}) for t in (69.0, 70.5, 75.0)]
    events = sorted([*steps, flag, *saved], key=lambda event: event.t)
    assert observed_costs(events) == GuaranteeCosts(step=1.0, checkpoint=0.5)
    assert observed_costs([]) == GuaranteeCosts(0.0, 0.0)
