"""Training processes in a round of torchrun: they hold at an agreed step until their elastic agent ends them."""

import signal
import time
from pathlib import Path

import pytest
from kubeai.elastic.elastic_agent import is_of_collective
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Script, Start
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
ROUND = {"KUBEAI_RENDEZVOUS_ROUND": "1"}


def _ranks(supervisor: FakeSupervisor, start: Start, **environ: str) -> list[Script]:
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
    began = time.monotonic()
    script = start(FAILING.format(message=message), **environ)
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
