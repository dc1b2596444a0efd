"""The one decision of kubeai-run, case by case."""

from dataclasses import replace
from itertools import product

import pytest
from kubeai.elastic.commands.orders import JobResult, RunExitCode, RunOrder, RunOrderKind
from kubeai.elastic.commands.reconcile import (
    Apply,
    Finish,
    KillCommand,
    RecordedStop,
    RunLimits,
    RunnerState,
    RunStep,
    Start,
    Terminate,
    Wait,
    reconcile,
)

NOW = 1000.0
LIMITS = RunLimits(restarts=2, register=60.0, stop=10.0, offline=30.0, settle=0.5)
RUN_1 = RunOrder(generation=5, kind=RunOrderKind.RUN, run=1, workers=2, phase="Running", token="t1")
WAIT = RunOrder(generation=9, kind=RunOrderKind.WAIT, run=1, phase="Suspended")
STOP_1 = replace(RUN_1, generation=7, stopping=True, phase="Stopping")


def new() -> RunnerState:
    return RunnerState(began_at=NOW)


def in_place(state: RunnerState) -> RunnerState:
    assert state.order is not None
    return replace(state, in_place=True, applied=state.order.generation)


def given(order: RunOrder, before: RunnerState | None = None) -> RunnerState:
    return in_place((before or new()).ordered(order))


def running(order: RunOrder = RUN_1, run: int = 1) -> RunnerState:
    return given(order).started(run, restart=False)


def failed(*, confirmed: bool = True, restarts: int = 0, delay: float = 2.0) -> RunnerState:
    """Run 1 ended by itself with code 3, at NOW."""
    ended = replace(running(), restarts=restarts).ended(3, NOW, delay, None)
    return ended.confirmed_end(1) if confirmed else ended


def then(state: RunnerState, now: float = NOW) -> RunStep:
    return reconcile(state, LIMITS, now)


def test_before_the_first_order_it_waits_for_the_supervisor_and_gives_up_at_the_time_limit() -> None:
    """A supervisor that was never reached ends it, without a result that nobody would hear."""
    assert then(new()) == Wait(NOW + 60)
    assert then(new(), NOW + 60) == Finish(RunExitCode.UNREACHED, None)


def test_once_registered_no_absence_ends_it() -> None:
    assert then(replace(running(), fresh=False), NOW + 1e9) == Wait()


@pytest.mark.parametrize("order", [RUN_1, WAIT, STOP_1, replace(WAIT, kind=RunOrderKind.END)])
def test_an_order_is_applied_before_anything_is_started_ended_or_finished(order: RunOrder) -> None:
    assert then(new().ordered(order)) == Apply(order)
    assert then(running().ordered(order)) == Apply(order)


def test_nothing_is_started_while_exclusions_cannot_be_written() -> None:
    """A command must never see a host that it is to leave out."""
    blocked = replace(new().ordered(RUN_1), blocked_until=NOW + 1)
    assert then(blocked) == Wait(NOW + 1)
    assert then(blocked, NOW + 1) == Apply(RUN_1)


def test_a_command_is_ended_though_exclusions_cannot_be_written() -> None:
    assert then(replace(running().ordered(WAIT), blocked_until=NOW + 1)) == Terminate()


def test_the_first_run_order_starts_that_run() -> None:
    assert then(given(RUN_1)) == Start(1)
    assert then(given(replace(RUN_1, run=4))) == Start(4)


def test_a_start_that_failed_is_tried_again_later() -> None:
    assert then(replace(given(RUN_1), blocked_until=NOW + 1)) == Wait(NOW + 1)
    assert then(replace(given(RUN_1), blocked_until=NOW + 1), NOW + 1) == Start(1)


def test_a_run_that_is_to_stop_is_not_started_at_all() -> None:
    assert then(given(STOP_1)) == Wait()


@pytest.mark.parametrize("run", [1, 2])
def test_a_run_order_at_or_below_the_running_number_lets_it_go_on(run: int) -> None:
    assert then(in_place(running(run=2).ordered(replace(RUN_1, run=run)))) == Wait()
    assert then(in_place(running(run=2).ordered(replace(STOP_1, run=run)))) == Wait()


@pytest.mark.parametrize(
    "order",
    [WAIT, replace(WAIT, kind=RunOrderKind.END), replace(RUN_1, generation=9, run=2)],
    ids=["wait", "end", "another run"],
)
def test_a_command_that_should_not_run_is_asked_to_end_and_killed_after_the_grace(order: RunOrder) -> None:
    state = given(order, running())
    assert then(state) == Terminate()
    asked = state.asked_to_end(NOW)
    assert then(asked) == Wait(NOW + 10)
    assert then(asked, NOW + 10) == KillCommand()
    assert then(replace(asked, kill_asked=True), NOW + 11) == Wait()


def test_a_command_that_was_asked_to_end_is_brought_to_its_end_though_the_order_is_taken_back() -> None:
    asked = given(WAIT, running()).asked_to_end(NOW)
    assert then(given(replace(RUN_1, generation=10), asked), NOW + 10) == KillCommand()


def test_code_0_is_success_whatever_was_ordered_meanwhile() -> None:
    """Leaving never uses code 0, so it cannot be a stop."""
    success = Finish(RunExitCode.SUCCEEDED, JobResult.SUCCEEDED)
    assert then(running().ended(0, NOW, 1.0, None)) == success
    assert then(given(STOP_1, running()).ended(0, NOW, 1.0, RecordedStop(1, 7))) == success
    assert then(given(WAIT, running().ended(0, NOW, 1.0, None))) == success


def test_code_0_after_we_asked_for_the_end_is_no_success() -> None:
    """A launcher may end orderly on SIGTERM; the job's work is not done."""
    ended = given(WAIT, running()).asked_to_end(NOW).ended(0, NOW, 1.0, None)
    assert then(ended) == Wait()
    assert then(given(replace(RUN_1, generation=11, run=2), ended)) == Start(2)


def test_an_end_after_an_order_that_announced_a_stop_waits_for_the_next_order() -> None:
    assert then(given(STOP_1, running()).ended(255, NOW, 1.0, None), NOW + 1e9) == Wait()


def test_a_stop_that_is_announced_after_the_end_still_makes_it_one() -> None:
    assert then(given(STOP_1, failed()), NOW + 1e9) == Wait()


def test_a_stop_once_announced_stays_one_though_later_orders_do_not_repeat_it() -> None:
    stopped = given(STOP_1, running()).ended(255, NOW, 1.0, None)
    assert then(given(replace(RUN_1, generation=6), stopped), NOW + 1e9) == Wait()


def test_a_word_left_by_a_process_makes_the_end_a_stop_while_the_supervisor_is_away() -> None:
    assert then(replace(running(), fresh=False).ended(255, NOW, 1.0, RecordedStop(1, 7)), NOW + 1e9) == Wait()
    assert then(replace(running(run=2), fresh=False).ended(255, NOW, 1.0, RecordedStop(1, 7)), NOW + 31) == Start(
        3, restart=True
    )


def test_a_stop_of_another_run_is_none_of_this_one() -> None:
    assert then(given(STOP_1, running(run=2)).ended(3, NOW, 0.0, None).confirmed_end(2), NOW + 1) == Start(
        3, restart=True
    )


def test_after_a_stop_and_a_suspension_the_next_run_is_started_and_not_counted() -> None:
    stopped = given(STOP_1, running()).ended(255, NOW, 1.0, None)
    assert then(given(WAIT, stopped)) == Wait()
    assert then(given(replace(RUN_1, generation=12, run=2), given(WAIT, stopped))) == Start(2)


def test_a_newer_order_that_wants_the_job_to_run_ends_the_wait_after_a_stop() -> None:
    """A supervisor that no longer wants the stop must not be waited for, for ever."""
    asked = given(WAIT, running()).asked_to_end(NOW).ended(-15, NOW, 1.0, None)
    assert then(given(replace(RUN_1, generation=10), asked)) == Start(2)
    assert then(given(replace(STOP_1, generation=10), asked)) == Wait()


def test_a_failure_waits_for_orders_on_their_way_then_for_the_back_off() -> None:
    assert then(failed()) == Wait(NOW + 0.5)
    assert then(failed(), NOW + 0.5) == Wait(NOW + 2)
    assert then(failed(), NOW + 2) == Start(2, restart=True)
    assert failed().started(2, restart=True).restarts == 1


@pytest.mark.parametrize(
    "away", [failed(confirmed=False), replace(failed(), fresh=False), replace(failed(confirmed=False), fresh=False)]
)
def test_an_end_that_the_supervisor_does_not_know_of_is_judged_after_the_offline_grace(away: RunnerState) -> None:
    assert then(away, NOW + 29) == Wait(NOW + 30)
    assert then(away, NOW + 30) == Start(2, restart=True)


def test_a_confirmation_of_an_earlier_run_confirms_nothing() -> None:
    assert then(failed(confirmed=False).confirmed_end(0), NOW + 2) == Wait(NOW + 30)


def test_beyond_the_back_off_limit_the_job_has_failed() -> None:
    assert then(failed(restarts=2)) == Wait(NOW + 0.5)
    assert then(failed(restarts=2), NOW + 0.5) == Finish(RunExitCode.BACK_OFF_LIMIT, JobResult.FAILED)
    assert then(replace(failed(restarts=2), fresh=False), NOW + 29) == Wait(NOW + 30)


def test_a_suspension_after_an_end_makes_it_a_stop_that_was_not_heard_of() -> None:
    """Nothing is restarted while the order is to wait, and the run after it is neither counted nor delayed."""
    suspended = given(WAIT, replace(failed(confirmed=False, restarts=2), fresh=False))
    assert then(suspended, NOW + 1e9) == Wait()
    assert then(given(replace(RUN_1, generation=11, run=2), suspended)) == Start(2)


def test_the_supervisors_word_about_the_next_run_does_not_shorten_the_back_off_or_lift_its_limit() -> None:
    """It orders the next run as soon as it hears of a failure, but counting failures is done here."""
    ordered = replace(RUN_1, generation=11, run=2)
    assert then(given(ordered, failed()), NOW + 0.5) == Wait(NOW + 2)
    assert then(given(ordered, failed()), NOW + 2) == Start(2, restart=True)
    assert then(given(ordered, failed(restarts=2)), NOW + 2) == Finish(RunExitCode.BACK_OFF_LIMIT, JobResult.FAILED)


def test_a_run_that_is_to_stop_before_its_restart_is_not_started() -> None:
    assert then(given(replace(STOP_1, generation=11, run=2), failed()), NOW + 1e9) == Wait()


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("TimedOut", Finish(RunExitCode.TIMED_OUT, JobResult.TIMED_OUT)),
        ("Finished", Finish(RunExitCode.TERMINATED, JobResult.TERMINATED)),
    ],
)
def test_an_order_to_end_is_the_end(phase: str, expected: Finish) -> None:
    end = replace(WAIT, kind=RunOrderKind.END, phase=phase)
    assert then(given(end)) == expected
    assert then(given(end, running()).asked_to_end(NOW).ended(-15, NOW, 1.0, None)) == expected


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (RunExitCode.TERMINATED, JobResult.TERMINATED),
        (RunExitCode.INTERRUPTED, JobResult.TERMINATED),
        (RunExitCode.NAME_IS_LIVE, None),
        (RunExitCode.UNREACHED, None),
    ],
)
def test_leaving_ends_the_command_first(code: RunExitCode, result: JobResult | None) -> None:
    leaving = running().leave(code)
    assert then(leaving) == Terminate()
    assert then(leaving.asked_to_end(NOW)) == Wait(NOW + 10)
    assert then(leaving.asked_to_end(NOW).ended(-15, NOW, 1.0, None)) == Finish(code, result)
    assert then(new().leave(code)) == Finish(code, result)


def asked_to_end(state: RunnerState) -> RunnerState:
    return state.leave(RunExitCode.TERMINATED, NOW)


def test_a_running_command_goes_on_until_it_is_stopped_or_its_grace_is_over() -> None:
    """The order to wait means that it is saved; without, it is ended and people are told."""
    asked = asked_to_end(running())
    assert asked.ending
    assert then(asked) == Wait(NOW + 60)
    assert then(given(STOP_1, asked), NOW + 59) == Wait(NOW + 60)
    assert then(given(WAIT, asked)) == Terminate()
    remark = "no checkpoint was reported after 60 s: ending run 1 without a checkpoint"
    assert then(given(STOP_1, asked), NOW + 60) == Terminate(remark)
    assert then(replace(asked, fresh=False), NOW + 60) == Terminate(
        "the supervisor is unreachable after 60 s: ending run 1 without a checkpoint"
    )


def test_what_is_not_in_place_yet_is_tried_again_while_it_saves() -> None:
    assert then(asked_to_end(replace(running().ordered(STOP_1), blocked_until=NOW + 1))) == Wait(NOW + 1)


def test_each_further_request_is_more_urgent() -> None:
    """First without a checkpoint, then without a grace; the exit code is that of the first reason."""
    twice = asked_to_end(running()).leave(RunExitCode.INTERRUPTED, NOW + 1)
    assert then(twice) == Terminate()
    assert then(twice.asked_to_end(NOW)) == Wait(NOW + 10)
    thrice = twice.asked_to_end(NOW).leave(RunExitCode.INTERRUPTED, NOW + 2)
    assert then(thrice) == KillCommand()
    assert then(replace(thrice, kill_asked=True).ended(-9, NOW, 1.0, None)) == Finish(
        RunExitCode.TERMINATED, JobResult.TERMINATED
    )


def test_a_request_after_the_grace_kills() -> None:
    late = asked_to_end(running()).asked_to_end(NOW + 60).leave(RunExitCode.TERMINATED, NOW + 61)
    assert then(late, NOW + 61) == KillCommand()


@pytest.mark.parametrize("idle", [new(), given(WAIT), failed(), replace(failed(), fresh=False), given(WAIT, failed())])
def test_without_a_running_command_there_is_nothing_to_save(idle: RunnerState) -> None:
    assert then(asked_to_end(idle)) == Finish(RunExitCode.TERMINATED, JobResult.TERMINATED)


def test_a_command_that_ends_meanwhile_is_not_started_again() -> None:
    """Code 0 is success; any other is that of a stop or of a failure, which nobody tries again."""
    asked = asked_to_end(running())
    assert then(asked.ended(0, NOW, 1.0, None)) == Finish(RunExitCode.SUCCEEDED, JobResult.SUCCEEDED)
    assert then(asked.ended(3, NOW, 1.0, None)) == Finish(RunExitCode.TERMINATED, JobResult.TERMINATED)
    assert then(given(STOP_1, asked).ended(255, NOW, 1.0, None)) == Finish(RunExitCode.TERMINATED, JobResult.TERMINATED)


def test_a_request_during_a_suspension_changes_nothing_for_the_command() -> None:
    suspended = given(WAIT, running()).asked_to_end(NOW)
    assert then(asked_to_end(suspended)) == Wait(NOW + 10)


def test_a_name_that_is_taken_while_it_saves_ends_it_at_once() -> None:
    """Two of one job would write the same checkpoint."""
    assert then(asked_to_end(running()).leave(RunExitCode.NAME_IS_LIVE)) == Terminate()


def _situations() -> list[RunnerState]:
    orders = [
        RunOrder(generation=generation, kind=kind, run=run, stopping=stopping)
        for generation, kind, run, stopping in product((6, 8), RunOrderKind, (1, 2, 3), (False, True))
    ]
    bases = [
        new(),
        running(),
        running(run=2),
        running().asked_to_end(NOW),
        replace(running().asked_to_end(NOW), kill_asked=True),
        failed(),
        failed(confirmed=False),
        failed(restarts=2),
        running().ended(0, NOW, 1.0, None),
        running().ended(255, NOW, 1.0, RecordedStop(1, 7)),
        running().asked_to_end(NOW).ended(-15, NOW, 1.0, None),
    ]
    plain = [base for base in bases if base.order is not None]
    return plain + [given(order, base) for order, base in product(orders, bases)]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("later", [0.0, 0.5, 2.0, 30.0, 1e6])
def test_in_every_situation_the_step_is_one_that_may_be_taken(later: float, *, lost: bool) -> None:
    """Nothing starts beside a running command or against the order; waiting always ends or needs an event."""
    for base in _situations():
        state = replace(base, fresh=False) if lost else base
        order = state.order
        assert order is not None
        step = then(state, NOW + later)
        if isinstance(step, Start):
            assert not state.running
            assert step.run > state.run
            assert order.kind is RunOrderKind.RUN
            end = state.end
            assert step.restart == (end is not None and not end.asked and state.stopped_by is None)
        if isinstance(step, Terminate):
            assert state.running
            assert order.kind is not RunOrderKind.RUN or order.run > state.run
        if isinstance(step, Wait) and step.until is not None:
            assert step.until > NOW + later
        if isinstance(step, Finish):
            assert not state.running
