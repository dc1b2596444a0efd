"""The demo job under a (fake) supervisor: what a STOP does to the training, and that deliberate damage shows."""

import signal
from collections.abc import Iterator

import pytest
from kubeai.elastic.testing import ALL, FakeSupervisor

from simulator import checkpoint
from simulator.events import JobEventKind
from simulator.judge import Failure
from simulator.model import reference
from tests.simulator.elastic.training_jobs import DEADLINE, Folder
from tests.testkit.waiting import wait_until

STEPS = 60


@pytest.fixture
def supervisor(folder: Folder) -> Iterator[FakeSupervisor]:
    with FakeSupervisor() as fake:
        fake.write_identity(folder.identity)
        yield fake


def until_connected(supervisor: FakeSupervisor, ranks: int) -> None:
    """Wait until so many processes have a stream and have said their rank."""

    def known() -> set[object]:
        return {hello.body["rank"] for hello in supervisor.hellos if "process" in hello.body}

    supervisor.wait_for(lambda: known() >= set(range(ranks)))


def test_a_stop_saves_and_the_next_run_goes_on_from_there(folder: Folder, supervisor: FakeSupervisor) -> None:
    """Rank 0 alone is told, saves and holds; nobody steps on; a second run with other hosts ends with the same bits."""
    folder.list_hosts("abc")
    first = folder.launch(steps=STEPS, least=2)
    until_connected(supervisor, ranks=3)
    folder.until_step(5)
    for host in "bc":
        folder.tell_truth(JobEventKind.NOTICE_SHOWN, node=host, group="g", lead=10.0, deadline=0.0, synthetic=False)
    supervisor.direct(0, directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    assert len(folder.events(JobEventKind.CHECKPOINT_SAVED)) == 1
    first.terminate()
    assert first.wait(DEADLINE) == 128 + signal.SIGTERM
    supervisor.direct(ALL, directive="RUN")
    supervisor.write_identity(folder.identity, run=2)
    folder.list_hosts("ade")
    assert folder.launch(steps=STEPS, least=2, run=2).wait(DEADLINE) == 0
    verdict = folder.verdict(STEPS, least=2)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)
    assert verdict.figures.notice_to_flag.count == 1
    assert folder.events(JobEventKind.CHECKPOINT_LOADED)[0].integer("step") == folder.events(JobEventKind.FLAG_SEEN)[
        0
    ].integer("step")


def test_a_survivor_replaces_no_newer_checkpoint(folder: Folder, supervisor: FakeSupervisor) -> None:
    """Rank 0 has saved and its host goes first: the next rank 0 is back at its last commit when it is told to stop."""
    folder.list_hosts("abc")
    launcher = folder.launch(steps=10_000, options=("--commit-every", "1000"))
    until_connected(supervisor, ranks=3)
    folder.until_step(5)
    supervisor.direct(0, directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    (flag,) = folder.events(JobEventKind.FLAG_SEEN)
    # The survivors are in the next step, too, or they would be told before they go back to their commit.
    wait_until(lambda: folder.hosts_at(flag.integer("step")) == {*"abc"}, "all hosts to be as far as rank 0")
    folder.kill("a")
    supervisor.direct(ALL, directive="STOP", release=True)
    assert launcher.wait(DEADLINE) == 1
    told = {event.text("host"): event.integer("step") for event in folder.events(JobEventKind.FLAG_SEEN)}
    assert told["b"] < told["a"]  # Its commit is 0; on a busy machine it has made a step since.
    saved = checkpoint.load(folder.checkpoint)
    assert saved is not None
    assert saved[1] == told["a"]


def test_nobody_steps_while_rank_0_holds(folder: Folder, supervisor: FakeSupervisor) -> None:
    """The others wait for rank 0's part of the next sum as long as its exit hook holds it."""
    folder.list_hosts("ab")
    folder.launch(steps=10_000)
    until_connected(supervisor, ranks=2)
    folder.until_step(3)
    supervisor.direct(0, directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    (saved,) = folder.events(JobEventKind.CHECKPOINT_SAVED)
    assert folder.last_step() == saved.integer("step")
    supervisor.direct(0, directive="STOP", release=True)
    wait_until(lambda: folder.last_step() > saved.integer("step"), "the survivor to go on once rank 0 is released")
    assert folder.verdict(1).figures.steps_after_stop > 0


def test_a_stop_without_a_reason_is_found(folder: Folder, supervisor: FakeSupervisor) -> None:
    """Negative control: a STOP that no notice justifies fails the verdict, though nothing is lost."""
    folder.list_hosts("a")
    first = folder.launch(steps=20)
    until_connected(supervisor, ranks=1)
    supervisor.direct(0, directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    supervisor.direct(ALL, directive="STOP", release=True)
    assert first.wait(DEADLINE) == 1, "no worker with the state is left"
    supervisor.direct(ALL, directive="RUN")
    assert folder.launch(steps=20, run=2).wait(DEADLINE) == 0
    assert {finding.failure for finding in folder.verdict(20).failures} == {Failure.FALSE_STOP}


def test_a_notice_reaches_the_events(folder: Folder, supervisor: FakeSupervisor) -> None:
    folder.list_hosts("a")
    folder.launch(steps=10_000)
    until_connected(supervisor, ranks=1)
    notice = {"id": "aliyun/i-1", "source": "aliyun", "host": "z", "seconds_left": 60.0}
    supervisor.direct(ALL, directive="RUN", notice=notice)
    wait_until(lambda: bool(folder.events(JobEventKind.NOTICE_SEEN)), "the notice")
    (seen,) = folder.events(JobEventKind.NOTICE_SEEN)
    assert (seen.text("notice"), seen.text("subject"), seen.text("host")) == ("aliyun/i-1", "z", "a")


@pytest.mark.parametrize("fault", ["skip-update", "corrupt-shard"])
def test_damage_fails_the_verdict(folder: Folder, fault: str) -> None:
    """Negative controls: one update left out, or one shard off by one bit, and the parameters differ from then on."""
    folder.list_hosts("ab")
    options = ("--fault", fault, "--fault-step", "7")
    assert folder.launch(steps=12, options=options).wait(DEADLINE) == 0
    assert {finding.failure for finding in folder.verdict(12).failures} == {Failure.PARAMETERS_DIFFER}
    digests = {event.integer("step"): event.text("digest") for event in folder.events(JobEventKind.STEP_APPLIED)}
    assert digests[6] == reference(6)
    assert digests[7] != reference(7)


def test_a_checkpoint_that_is_not_saved_shows_as_lost_steps(folder: Folder) -> None:
    """Negative control: a run that ends without its checkpoint makes the next one execute its steps again."""
    folder.list_hosts("ab")
    first = folder.launch(steps=30)
    folder.until_step(5)
    first.kill()
    first.wait(DEADLINE)
    lost = folder.last_step()
    assert folder.launch(steps=30, run=2).wait(DEADLINE) == 0
    verdict = folder.verdict(30)
    assert {finding.failure for finding in verdict.failures} == {Failure.STEP_LOST}
    assert verdict.figures.steps_lost >= lost


def test_periodic_checkpoints_bound_the_loss(folder: Folder) -> None:
    folder.list_hosts("a")
    options = ("--checkpoint-every", "5")
    assert folder.launch(steps=12, options=options).wait(DEADLINE) == 0
    assert folder.launch(steps=15, run=2, options=options).wait(DEADLINE) == 0
    assert [event.integer("step") for event in folder.events(JobEventKind.CHECKPOINT_LOADED)] == [10]
