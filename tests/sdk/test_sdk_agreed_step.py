"""Real training processes that stop and save at a step on which they agree."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import HOLDING, TRAINING, Start, TrainingScript

COUNTING = """
    import os, time
    import kubeai.elastic as kubeai

    collective, sigterm = "COLLECTIVE" in os.environ, "TERM" in os.environ
    kubeai.init(rank=lambda: int(os.environ["RANK"]), collective=collective, sigterm=sigterm)
    kubeai.resumed(0)
    step, slowest, pause = 0, 0.0, float(os.environ.get("PAUSE", "0.005"))
    while True:
        time.sleep(pause)
        step += 1
        print(f"step {step}.")
        began = time.monotonic()
        save, stop = kubeai.should_checkpoint(step), kubeai.should_stop(step)
        took, slowest = time.monotonic() - began, max(slowest, time.monotonic() - began)
        if took > 1:
            print(f"waited at {step} for {took:.1f} s")
        if save:
            print(f"saves at {step},")
            kubeai.checkpoint_saved(step, seconds=0.25)
        if stop:
            print(f"stops at {step}, agreed", kubeai.stop_is_agreed(), kubeai.check_alive(), kubeai.should_stop(step))
            print(f"slowest call {slowest:.6f}")
            kubeai.checkpoint_saved(step)
            kubeai.exit_for_resume()
"""
_CLOCK_TICK = 0.02
"""The kernel tells the start of a process in hundredths of a second."""

AGREED = "stops at {}, agreed True False True\n"
ALONE = "agreed False False True\n"

Ranks = Callable[..., list[TrainingScript]]


@pytest.fixture
def ranks(supervisor: FakeSupervisor, start: Start) -> Ranks:
    """Start this many ranks and wait until they train. Keyword arguments are their environment."""

    def begin(count: int = 1, **environ: str) -> list[TrainingScript]:
        scripts = [start(COUNTING, RANK=str(rank), **environ) for rank in range(count)]
        supervisor.wait_for(lambda: len(supervisor.hellos) == count)
        for script in scripts:
            script.wait_for_line("step 3.")
        return scripts

    return begin


def _answer(supervisor: FakeSupervisor, epoch: int, answer: str) -> dict[str, object]:
    """Wait until the answer of the only process to an epoch is this one."""

    def given() -> list[dict[str, object]]:
        return [report for report in supervisor.answers_of(epoch).values() if report["answer"] == answer]

    return supervisor.wait_for(given)[0]


def _step(script: TrainingScript) -> int:
    """The step that a script has reached."""
    return script.out.read_text().count("step ")


@pytest.mark.parametrize("pause", ["0", "0.02"])
def test_all_ranks_stop_at_one_step(supervisor: FakeSupervisor, ranks: Ranks, pause: str) -> None:
    """However fast they step; they are held until the job is suspended, and exit with the code for a resumption."""
    scripts = ranks(3, COLLECTIVE="1", PAUSE=pause)
    step = supervisor.agree(3)
    supervisor.wait_for(lambda: len(supervisor.reports_of("left")) == 3)
    assert all(script.process.poll() is None for script in scripts)
    supervisor.direct(directive="STOP", release=True)
    assert [script.end() for script in scripts] == [75, 75, 75]
    assert all(AGREED.format(step) in script.output() for script in scripts)
    assert {report["step"] for report in supervisor.reports_of("saved")} == {step}
    assert {report["rank"] for report in supervisor.reports_of("left")} == {0, 1, 2}


def test_ranks_save_at_one_step_and_train_on(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    """Once for each request, whatever lines follow; the next request is for another step."""
    scripts = ranks(2, COLLECTIVE="1")
    first = supervisor.agree(2, purpose="checkpoint")
    supervisor.wait_for(lambda: len(supervisor.reports_of("saved")) == 2)
    supervisor.direct(directive="CHECKPOINT", generation=supervisor.reports_of("saved")[0]["generation"])
    supervisor.direct()
    second = supervisor.agree(2, purpose="checkpoint", epoch=101)
    supervisor.wait_for(lambda: len(supervisor.reports_of("saved")) == 4)
    stop = supervisor.agree(2, epoch=201)
    supervisor.wait_for(lambda: len(supervisor.reports_of("left")) == 2)
    for script in scripts:
        assert [line for line in script.output().splitlines() if line.startswith("saves")] == [
            f"saves at {first},",
            f"saves at {second},",
        ]
        assert AGREED.format(stop) in script.output()


def test_a_library_says_that_a_save_needs_all_ranks(supervisor: FakeSupervisor, start: Start) -> None:
    """As `kubeai.torch` does for a sharded state: a script that does not say it would save alone, and hang."""
    start("""
        import signal
        import kubeai.elastic as kubeai
        from kubeai.elastic.loop import saves_need_all_ranks

        kubeai.init(rank=0)
        saves_need_all_ranks()
        signal.pause()
    """)
    said = supervisor.wait_for(lambda: [each for each in _statements(supervisor) if each["collective"]])
    assert said[-1]["rank"] == 0


def _statements(supervisor: FakeSupervisor) -> list[dict[str, object]]:
    return [*(each.body for each in supervisor.hellos), *supervisor.reports_of("rank")]


def test_a_poll_is_answered_with_step_and_pace(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    (script,) = ranks(WORLD_SIZE="1")
    hello = supervisor.hellos[0].body
    assert (hello["agreement"], hello["agrees"], hello["collective"], hello["world_size"]) == (None, [], False, 1)
    supervisor.wait_for(lambda: supervisor.reports_of("rank"))
    assert supervisor.reports_of("rank")[-1]["agrees"] == ["checkpoint", "stop"]
    assert supervisor.reports_of("resumed")[0]["step"] == 0
    for epoch in range(1, 600, 2):
        supervisor.propose(epoch)
        answer = _answer(supervisor, epoch, "declined")
        assert (answer["at_step"], answer["purpose"]) == (None, "stop")
        assert 3 <= int(str(answer["step"])) <= _step(script)
        if answer["step_seconds"] is not None:
            break
        time.sleep(0.01)
    assert 0.004 < float(str(answer["step_seconds"])) < 1
    assert float(str(answer["unread_seconds"])) < 30


def test_the_time_of_a_step_is_reported_before_anybody_asks(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    """A supervisor that decides when hosts leave has to know it, and so has the next one."""
    ranks(WORLD_SIZE="1")
    [said] = supervisor.wait_for(
        lambda: [each for each in supervisor.reports_of("rank") if each["step_seconds"] is not None]
    )
    assert 0.004 < float(str(said["step_seconds"])) < 1
    supervisor.drop()
    hello = supervisor.wait_for(lambda: supervisor.hellos[1:])[0].body
    assert hello["step_seconds"] == said["step_seconds"]


def test_the_time_of_a_start_is_reported(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    """It is the age of the process at its first step, which the supervisor weighs against what a restart brings."""
    begun = time.monotonic()
    ranks(WORLD_SIZE="1")
    [said, *_] = supervisor.wait_for(
        lambda: [each for each in supervisor.reports_of("rank") if each["start_seconds"] is not None]
    )
    assert 0 < float(str(said["start_seconds"])) <= time.monotonic() - begun + _CLOCK_TICK
    supervisor.drop()
    hello = supervisor.wait_for(lambda: supervisor.hellos[1:])[0].body
    assert hello["start_seconds"] == said["start_seconds"]


def test_a_step_that_is_already_finished_is_declined(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    (script,) = ranks()
    supervisor.propose(1, 2)
    answer = _answer(supervisor, 1, "declined")
    assert (answer["at_step"], int(str(answer["step"])) >= 3) == (2, True)
    seen = _step(script)
    script.wait_for_line(f"step {seen + 50}.")
    assert "waited" not in script.output()


def test_nobody_waits_before_the_step_and_a_withdrawn_one_leaves_no_trace(
    supervisor: FakeSupervisor, ranks: Ranks
) -> None:
    (script,) = ranks()
    ahead = _step(script) + 100
    supervisor.propose(1, ahead)
    _answer(supervisor, 1, "accepted")
    supervisor.direct()
    script.wait_for_line(f"step {ahead + 20}.")
    supervisor.propose(2, 10**9)
    _answer(supervisor, 2, "accepted")
    script.wait_for_line(f"step {_step(script) + 50}.")
    assert "waited" not in script.output()
    supervisor.direct(directive="STOP")
    script.wait_for_line("slowest call")
    assert ALONE in script.output()


def test_a_rank_waits_two_seconds_at_the_step_and_trains_on(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    """It says that it has passed, and another step can be agreed."""
    (script,) = ranks()
    step = _step(script) + 60
    supervisor.propose(1, step)
    assert _answer(supervisor, 1, "passed")["at_step"] == step
    script.wait_for_line(f"step {step + 1}.")
    assert f"waited at {step} for 2." in script.output()
    supervisor.commit(1, step)  # too late
    script.wait_for_line(f"step {step + 50}.")
    later = supervisor.agree(1, epoch=2)
    script.wait_for_line(AGREED.format(later))


def test_a_commit_ends_the_wait(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    (script,) = ranks(PAUSE="0.02")
    step = _step(script) + 10
    supervisor.propose(1, step)
    script.wait_for_line(f"step {step}.")
    supervisor.commit(1, step)
    script.wait_for_line(AGREED.format(step))


def test_a_moved_step_ends_the_wait(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    (script,) = ranks(PAUSE="0.02")
    step = _step(script) + 10
    supervisor.propose(1, step)
    script.wait_for_line(f"step {step}.")
    supervisor.propose(2, step + 30)
    _answer(supervisor, 2, "accepted")
    supervisor.commit(2, step + 30)
    script.wait_for_line(AGREED.format(step + 30))


def test_ctrl_c_ends_the_wait(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    (script,) = ranks(PAUSE="0.02")
    step = _step(script) + 10
    supervisor.propose(1, step)
    script.wait_for_line(f"step {step}.")
    script.process.send_signal(signal.SIGINT)
    assert script.end() == -signal.SIGINT
    assert f"step {step + 1}." not in script.output()


def test_without_an_agreement_should_stop_follows_the_flag(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    (script,) = ranks(KUBEAI_EXIT_HOLD="0")
    supervisor.direct(directive="STOP")
    assert script.end() == 75
    assert ALONE in script.output()
    assert HOLDING.format(0) in script.output()


def test_should_checkpoint_follows_an_older_supervisor(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    """Without an agreement it is as without a step: True until the checkpoint is reported."""
    (script,) = ranks()
    supervisor.direct(directive="CHECKPOINT", generation=7)
    saved = supervisor.wait_for(lambda: supervisor.reports_of("saved"))
    script.wait_for_line(f"step {_step(script) + 20}.")
    assert [report["generation"] for report in saved] == [7]
    assert script.output().count("saves at") == 1


@pytest.mark.parametrize("kind", ["STOP", "LEAVE", "SIGTERM"])
def test_a_collective_save_waits_for_an_agreement(supervisor: FakeSupervisor, ranks: Ranks, kind: str) -> None:
    """A rank that saves alone would hang, so it trains on. An agreement may still follow."""
    (script,) = ranks(COLLECTIVE="1", TERM="1")
    if kind == "SIGTERM":
        script.process.terminate()
    else:
        supervisor.direct(directive=kind)
    script.wait_for_line(f"step {_step(script) + 100}.")
    step = supervisor.agree(1)
    script.wait_for_line(AGREED.format(step))
    assert "saves at" not in script.output()


def test_sigterm_stops_a_process_that_saves_alone(ranks: Ranks) -> None:
    (script,) = ranks(TERM="1")
    script.process.terminate()
    assert script.end() == 75
    assert ALONE in script.output()


def test_a_script_that_only_knows_check_alive_stops_at_once(supervisor: FakeSupervisor, start: Start) -> None:
    """Also if the others have agreed on a step, which it does not know."""
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.commit(1, 10**9)
    assert script.end() == 255
    assert not supervisor.reports_of("agreement")


def test_an_answer_is_repeated_on_a_new_stream(supervisor: FakeSupervisor, ranks: Ranks) -> None:
    """A supervisor that has restarted does not know it. The hello says what the rank holds."""
    ranks()
    supervisor.propose(1, 10**9)
    _answer(supervisor, 1, "accepted")
    supervisor.reports.clear()
    supervisor.drop()
    hello = supervisor.wait_for(lambda: supervisor.hellos[1:])[0].body
    assert hello["agreement"] == {"epoch": 1, "purpose": "stop", "step": 10**9, "committed": False}
    assert hello["agrees"] == ["checkpoint", "stop"]
    _answer(supervisor, 1, "accepted")


def test_an_answer_waits_for_nothing_but_the_supervisor(supervisor: FakeSupervisor, start: Start) -> None:
    """A rank function that hangs and a callback that hangs do not hold it up. An unconfirmed answer is repeated."""
    script = start(
        COUNTING.replace('int(os.environ["RANK"])', "time.sleep(600)").replace(
            "kubeai.resumed(0)", "kubeai.on_notice(lambda notice: time.sleep(600))"
        )
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    script.wait_for_line("step 3.")
    supervisor.refuse(503, "not_serving", path="/v1/processes/report")
    supervisor.propose(1, 10**9, notice={"id": "s/1", "source": "s", "host": "h", "seconds_left": 60})
    script.wait_for_line(f"step {_step(script) + 20}.")
    supervisor.accept()
    _answer(supervisor, 1, "accepted")


def test_a_rank_that_does_not_ask_says_so(supervisor: FakeSupervisor, start: Start) -> None:
    """On stderr once, with the names of the process, and to the supervisor again and again."""
    script = start(
        """
        import time
        import kubeai.elastic as kubeai
        from kubeai.elastic import reporter
        reporter._UNREAD_SECONDS = 0.2
        kubeai.init()
        kubeai.should_stop(5)
        time.sleep(600)
        """,
        RANK="3",
        KUBEAI_HOST="node-7",
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.propose(1)
    supervisor.wait_for(lambda: len(supervisor.reports_of("agreement")) >= 3)
    last = supervisor.reports_of("agreement")[-1]
    assert (last["answer"], last["step"]) == ("declined", 5)
    assert last["unread_seconds"] > 0.2
    assert script.warnings().count("which has not called should_stop() for") == 1
    assert script.err.read_text().endswith(f" (rank 3, node-7, pid {script.process.pid})\n")


def test_a_forked_child_neither_waits_nor_disturbs_its_parent(supervisor: FakeSupervisor, start: Start) -> None:
    """It is forked while the parent holds an accepted step; its own steps are nobody's."""
    script = start(
        """
        import os, time
        import kubeai.elastic as kubeai
        kubeai.init(rank=lambda: 0)
        kubeai.should_stop(1)
        print("asked")
        while not kubeai.directive().generation:
            time.sleep(0.005)
        child = os.fork()
        if child == 0:
            kubeai.should_stop(10**6)
            kubeai.should_checkpoint(10**6)
            kubeai.resumed(3)
            print("child")
            while not kubeai.should_stop(10**6):
                time.sleep(0.005)
            os._exit(3)
        step = 1
        while not kubeai.should_stop(step):
            step += 1
            time.sleep(0.05)
        print("stopped at", step, "child", os.waitpid(child, 0)[1] >> 8)
        """,
        KUBEAI_EXIT_HOLD="0",
    )
    script.wait_for_line("asked")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.propose(1, 1000)
    script.wait_for_line("child")
    supervisor.propose(2)
    step = int(str(_answer(supervisor, 2, "declined")["step"])) + 20
    supervisor.propose(3, step)
    _answer(supervisor, 3, "accepted")
    supervisor.commit(3, step)
    script.wait_for_line(f"stopped at {step} child 3")
    assert not supervisor.reports_of("resumed")
    assert script.end() == 0


def test_a_report_that_the_supervisor_does_not_know_is_given_up(supervisor: FakeSupervisor, start: Start) -> None:
    """An older supervisor does not know where a run has resumed; it still hears of the checkpoints."""
    supervisor.refuse(400, "malformed", path="/v1/processes/report")
    script = start(
        """
        import time
        import kubeai.elastic as kubeai
        from kubeai.elastic import api
        kubeai.init(rank=lambda: 0)
        kubeai.resumed(7)
        while api._session.monitor.next_report() is not None:
            time.sleep(0.005)
        print("given up")
        while not kubeai.should_checkpoint():
            time.sleep(0.005)
        kubeai.checkpoint_saved(8)
        time.sleep(600)
        """
    )
    script.wait_for_line("given up")
    supervisor.accept()
    supervisor.direct(directive="CHECKPOINT")
    assert supervisor.wait_for(lambda: supervisor.reports_of("saved"))[0]["step"] == 8
    assert not supervisor.reports_of("resumed")


def test_a_step_that_is_no_integer_is_refused_at_the_first_call(start: Start, tmp_path: Path) -> None:
    script = start(
        f"""
        import kubeai.elastic as kubeai
        for function in (kubeai.should_stop, kubeai.should_checkpoint, kubeai.resumed):
            try:
                function(1.5)
            except TypeError as error:
                print(error)
        print({str(tmp_path)!r} != "", kubeai.should_stop(True))
        """
    )
    assert script.end() == 0
    assert script.out.read_text().count("cannot be interpreted as an integer") == 3
