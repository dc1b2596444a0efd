"""What `plan` guarantees whatever its rules decide."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.decide import plan as planning
from supervisor.decide.plan import UnsettledPlanError, plan
from supervisor.decide.situation import JobFacts, Situation
from supervisor.domain.job import Decision, Phase
from tests.supervisor.decide.decide_builders import POLICY, T0, running_job


def test_rules_that_contradict_each_other_are_an_error_that_names_both_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job's bulkhead shows it; a decision that depends on the number of transitions would be carried out."""

    def shrinks(s: Situation) -> Decision:
        return replace(s.previous, phase=Phase.SHRINKING, reason="It shrinks.")

    def runs(s: Situation) -> Decision:
        return replace(s.previous, phase=Phase.RUNNING, reason="It runs.")

    monkeypatch.setattr(planning, "_RULES", {Phase.RUNNING: shrinks, Phase.SHRINKING: runs})
    with pytest.raises(UnsettledPlanError) as caught:
        plan(running_job(), JobFacts(), T0, POLICY)
    message = str(caught.value)
    assert 'Shrinking of run 1 ("It shrinks.")' in message
    assert 'Running of run 1 ("It runs.")' in message


def test_the_earliest_instant_that_a_rule_waits_for_is_named() -> None:
    situation = Situation(running_job(), running_job().decision, JobFacts(), T0, POLICY)
    assert (situation.reached(T0), situation.alarm.at) == (True, None)
    assert [situation.reached(T0 + after) for after in (9.0, 3.0, 5.0)] == [False, False, False]
    assert situation.alarm.at == T0 + 3


def test_an_instant_that_never_comes_is_not_named() -> None:
    situation = Situation(running_job(), running_job().decision, JobFacts(), T0, POLICY)
    assert (situation.reached(float("inf")), situation.alarm.at) == (False, None)


RULES = ("agreement", "live", "rendezvous", "stopping", "waiting")


@pytest.mark.parametrize("module", RULES)
def test_rules_compare_no_instant_with_the_present_by_themselves(module: str) -> None:
    """An instant that `reached` does not see is one at which nobody plans again."""
    source = Path(planning.__file__).with_name(f"{module}.py").read_text()
    compared = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Compare)]
    found = [ast.unparse(each) for each in compared if "s.now" in ast.unparse(each)]
    # This one chooses a word of a sentence, when the decision changes anyway.
    assert found == (["until <= s.now + s.policy.window_seconds"] if module == "live" else [])
