"""Training processes in a round of torchrun: they hold at an agreed step until their elastic agent ends them."""

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kubeai.elastic import gates
from kubeai.elastic.elastic_agent import is_of_collective
from kubeai.elastic.messages import Directive, DirectiveKind, DirectiveLine, RankAnswer, StepAgreement, StepPurpose
from kubeai.elastic.monitor import Monitor
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Start, TrainingScript
from tests.testkit.waiting import wait_until

TRAINING = """
    import os, time
    import kubeai.elastic as kubeai

    kubeai.init(rank=lambda: int(os.environ["RANK"]), sigterm=True)
    for step, _ in kubeai.steps(iter(int, 1), lambda step: print(f"saved {step}."), first=0):
        time.sleep(0.005)
        print(f"step {step}.")
"""
FAILING = """
    import kubeai.elastic as kubeai

    kubeai.init(rank=lambda: 0)
    print("up.")
    raise RuntimeError({message!r})
"""
LINE = DirectiveLine(Directive(DirectiveKind.RUN, "job", 1, 1, "sent by a test"), 0.0, None, None, release=False)
ROUND = {"KUBEAI_RENDEZVOUS_ROUND": "1"}


def _ranks(supervisor: FakeSupervisor, start: Start, **environ: str) -> list[TrainingScript]:
    scripts = [start(TRAINING, RANK=str(rank), **environ) for rank in range(2)]
    for script in scripts:
        script.wait_for_line("step 3.")
    reports = supervisor.reports_of
    supervisor.wait_for(lambda: len({each["rank"] for each in reports("rank") if "stop" in each["agrees"]}) == 2)
    return scripts


def _held(supervisor: FakeSupervisor) -> set[int]:
    answers = supervisor.reports_of("agreement")
    return {each["rank"] for each in answers if (each["purpose"], each["answer"]) == ("rendezvous", "held")}


def test_all_ranks_save_and_hold_until_they_are_ended(supervisor: FakeSupervisor, start: Start) -> None:
    """The directive of the next round, which is for their successors, does not end the hold."""
    scripts = _ranks(supervisor, start, **ROUND)
    step = supervisor.agree(2, purpose="rendezvous")
    supervisor.wait_for(lambda: _held(supervisor) == {0, 1})
    supervisor.direct()
    assert not supervisor.reports_of("left")
    for script in scripts:
        assert script.process.poll() is None
        assert f"saved {step}." in script.output()
        script.process.send_signal(signal.SIGTERM)
        assert script.end(60) == -signal.SIGTERM


def test_a_held_rank_is_not_noted_as_stopped(supervisor: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    """Its launcher would take a later failure for the stop, and start another run."""
    _ranks(supervisor, start, **ROUND)
    supervisor.agree(2, purpose="rendezvous")
    supervisor.wait_for(lambda: _held(supervisor) == {0, 1})
    assert not (tmp_path / "stopped").exists()


def test_the_next_supervisor_learns_who_holds(supervisor: FakeSupervisor, start: Start) -> None:
    """It was started between the commit and the next round."""
    scripts = _ranks(supervisor, start, **ROUND)
    step = supervisor.agree(2, purpose="rendezvous")
    supervisor.wait_for(lambda: _held(supervisor) == {0, 1})
    supervisor.stop()
    supervisor.reports.clear()
    supervisor.hellos.clear()
    supervisor.start()
    supervisor.wait_for(lambda: _held(supervisor) == {0, 1})
    assert {hello.body["agreement"]["step"] for hello in supervisor.hellos} == {step}
    assert all(script.process.poll() is None for script in scripts)


def test_a_rank_holds_once_its_checkpoint_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With that answer its process may be ended, and the report with it."""
    for name in ("_step", "_stop_gate", "_checkpoint_gate", "_regroup_gate"):
        monkeypatch.setattr(gates, name, getattr(gates, name))
    monkeypatch.setattr(gates, "_gates", dict(gates._gates))
    monitor = Monitor()
    gates._step = 4
    monitor.join(StepPurpose.REGROUP)
    monitor.receive(replace(LINE, agreement=StepAgreement(1, StepPurpose.REGROUP, 5, committed=True)))
    position = monitor.wait_at(StepPurpose.REGROUP, 5, 0.0)
    assert position is not None
    assert monitor.settle(position, outcome=None)
    monitor.checkpoint_saved(5, None)
    monitor.hold(StepPurpose.REGROUP)
    assert monitor.next_reply() == position  # it has committed itself, and says no more
    saved = monitor.next_report()
    assert saved is not None
    monitor.confirm(saved)
    reply = monitor.next_reply()
    assert reply is not None
    assert reply.answer is RankAnswer.HELD


def test_only_processes_of_a_round_agree_to_hold(supervisor: FakeSupervisor, start: Start) -> None:
    """Nobody would end the others."""
    _ranks(supervisor, start)
    said = supervisor.wait_for(
        lambda: [each["agrees"] for each in supervisor.reports_of("rank") if "stop" in each["agrees"]]
    )
    assert all("rendezvous" not in purposes for purposes in said)


def test_after_a_failed_collective_it_waits_for_its_agent(start: Start) -> None:
    """The agent ends it for the next round, in which nothing of `--max-restarts` is used up."""
    script = start(FAILING.format(message="gloo: Connection closed by peer"), **ROUND)
    script.wait_for_line("up.")
    wait_until(lambda: "Traceback" in script.output(), script.output)
    script.process.send_signal(signal.SIGTERM)
    assert script.end(60) == -signal.SIGTERM


@pytest.mark.parametrize(("message", "environ"), [("a bug", ROUND), ("gloo: Connection closed by peer", {})])
def test_other_failures_end_it_at_once(start: Start, message: str, environ: dict[str, str]) -> None:
    script = start(FAILING.format(message=message), **environ)
    script.wait_for_line("up.")
    began = time.monotonic()
    assert script.end(60) == 1
    assert time.monotonic() - began < 9.5


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer"), True),
        (RuntimeError("NCCL communicator was aborted on rank 3"), True),
        (type("DistBackendError", (RuntimeError,), {})("remote process exited"), True),
        (RuntimeError("CUDA out of memory"), False),
        (ValueError("gloo"), False),
    ],
)
def test_what_a_failed_collective_is(error: BaseException, expected: bool) -> None:  # noqa: FBT001
    assert is_of_collective(error) is expected


HANDLING = """
    import ctypes, signal, sys, time
    import kubeai.elastic as kubeai

    signal.signal(signal.SIGTERM, lambda *_: print("handled.", flush=True) or {then})
    kubeai.init()
    print("up.")
    {main}
"""
# One call of C says that it has begun, and starts again when a signal arrives, as a collective does. Its child ends
# with the script.
BLOCKED = """
    import os
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    ctypes.CDLL(None).system(b"echo blocked.; exec cat")
"""
SLEEPS = "end = time.monotonic() + 5\n    while time.monotonic() < end: time.sleep(0.005)\n    print('over.')"


def test_sigterm_ends_a_process_that_is_blocked_in_a_collective(start: Start) -> None:
    """Its own handler cannot run, and its agent would wait 30 s for it."""
    script = start(HANDLING.format(then="None", main=BLOCKED), **ROUND)
    script.wait_for_line("blocked.")
    script.process.send_signal(signal.SIGTERM)
    assert script.end(20) == 128 + signal.SIGTERM
    assert "handled" not in script.output()


def test_a_process_that_trains_is_left_to_its_own_handler(start: Start) -> None:
    """It may save before it exits, also if each step takes place in one and the same call."""
    script = start(HANDLING.format(then="None", main=SLEEPS), **ROUND)
    script.wait_for_line("up.")
    script.process.send_signal(signal.SIGTERM)
    assert script.end(60) == 0
    assert script.out.read_text() == "up.\nhandled.\nover.\n"


def test_the_scripts_own_descriptor_stays(start: Start) -> None:
    """Such as that of asyncio."""
    script = start(
        """
        import signal, socket
        import kubeai.elastic as kubeai
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        kubeai.init()
        print(signal.set_wakeup_fd(-1) == writer.fileno())
        reader.close(), writer.close()
        """,
        **ROUND,
    )
    assert script.end(60) == 0
    assert script.out.read_text() == "True\n"


def test_a_forked_child_does_not_end_its_parent(start: Start) -> None:
    """The child has inherited the descriptor to which its signals are written."""
    script = start(
        HANDLING.format(
            then="None",
            main="import os\n    child = os.fork()\n    if not child: time.sleep(60)\n"
            "    time.sleep(1); os.kill(child, signal.SIGTERM); time.sleep(6); os.kill(child, signal.SIGKILL)\n"
            "    os.waitpid(child, 0); print('trains.')",
        ),
        **ROUND,
    )
    assert script.end(60) == 0
    assert "trains." in script.output()


REGROUPING = """
    import os, time
    import kubeai.elastic as kubeai
    from kubeai.elastic import regroup

    kubeai.init(rank=lambda: int(os.environ["RANK"]))
    step = 0
    while not kubeai.should_stop(step):
        time.sleep(0.005)
        step += 1
        print(f"step {step}.")
        if regroup.should_regroup(step):
            print(f"pauses at {step},", kubeai.check_alive(), kubeai.directive().kind.value)
            with regroup.changing():
                time.sleep(0.1)  # a change takes some time, which the test finds in the reports
                if os.environ["RANK"] == "0":
                    kubeai.checkpoint_saved(step)
                regroup.report_holding()
    print(f"stops at {step}.")
    kubeai.exit_for_resume()
"""


def _holding(supervisor: FakeSupervisor) -> int:
    return len(
        {(each["epoch"], each["rank"]) for each in supervisor.reports_of("agreement") if each["answer"] == "held"}
    )


def _change_seconds(supervisor: FakeSupervisor) -> dict[int, float]:
    """Return how long a change has taken, as each rank that has measured one said last."""
    reports = supervisor.reports_of("rank")
    return {report["rank"]: report["change_seconds"] for report in reports if report["change_seconds"] is not None}


def test_ranks_pause_at_one_step_and_go_on(supervisor: FakeSupervisor, start: Start) -> None:
    """Again and again; no directive changes, and rank 0's checkpoint is known before it holds.

    They say how long that took, as the supervisor weighs it.
    """
    scripts = [start(REGROUPING, RANK=str(rank), **ROUND) for rank in range(2)]
    for script in scripts:
        script.wait_for_line("step 3.")
    supervisor.wait_for(lambda: len({report["rank"] for report in supervisor.reports_of("rank")}) == 2)
    steps = []
    for epoch in (1, 101, 201):
        steps.append(supervisor.agree(2, purpose="regroup", epoch=epoch))
        supervisor.wait_for(lambda: _holding(supervisor) == 2 * len(steps))
        supervisor.direct()
    supervisor.wait_for(lambda: len(_change_seconds(supervisor)) == 2)
    assert all(0.1 <= seconds < 60 for seconds in _change_seconds(supervisor).values())
    stopped = supervisor.agree(2, epoch=301)
    for script in scripts:
        script.wait_for_line(f"stops at {stopped}.")
        pauses = [line for line in script.output().splitlines() if line.startswith("pauses")]
        assert pauses == [f"pauses at {step}, True RUN" for step in steps]
    kinds = [each.body.get("answer", each.body["kind"]) for each in supervisor.reports if each.body["rank"] == 0]
    assert kinds.index("saved") < kinds.index("held")
    # The supervisor may begin the next round with this answer.
    regrouping = [each["answer"] for each in supervisor.reports_of("agreement") if each["purpose"] == "regroup"]
    assert "reached" not in regrouping
