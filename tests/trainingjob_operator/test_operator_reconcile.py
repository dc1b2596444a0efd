"""What the operator does with a job: starts, losses, failures, suspensions, sizes and scalings."""

from typing import Any

import pytest
from msgspec.structs import replace

from servicekit.bounds import instant_of
from tests.trainingjob_operator.operator_world import World, scale, scale_out_of, training_job
from trainingjob_operator.api import HOSTS_ANNOTATION, RUN_LABEL, SUSPEND_ANNOTATION
from trainingjob_operator.changes import CreateWorker, WriteHosts, WriteScale, WriteStatus
from trainingjob_operator.reconcile import LEAVE_SECONDS, told_later


def started(replicas: int = 4, **spec: Any) -> World:
    """Returns the world of a job that runs."""
    world = World(training_job(replicas, **spec))
    world.settle()
    assert world.phase == "Running"
    return world


def workers(*numbers: int) -> list[str]:
    return [f"job-worker-{number}" for number in numbers]


def test_a_job_starts_its_workers_and_then_its_launcher() -> None:
    world = World(training_job(3), room=2)
    world.settle()
    assert (world.phase, world.launcher) == ("Created", None)

    world.room = 3
    world.settle()
    assert world.phase == "Running"
    assert world.running == workers(0, 1, 2) == world.listed
    assert world.services == {"job-launcher", *workers(0, 1, 2)}
    assert world.job.status.current_workers == workers(0, 1, 2)
    kinds = [one.type for one in world.job.status.conditions or []]
    assert kinds == ["Created", "WorkersCreated", "WorkersReady", "LauncherCreated", "Running"]


def test_a_quick_start_writes_the_status_before_the_first_pod_and_when_the_job_runs() -> None:
    """What lies between is told with the latter, as nothing follows from it; the first status names the workers."""
    world = World(training_job(3))
    for _ in range(20):
        world.step(tells=False)
        world.kubelet()
    first, *others = world.made
    assert isinstance(first, WriteStatus)
    assert (first.status.phase, first.status.target_workers) == ("Created", workers(0, 1, 2))
    assert [one.status.phase for one in others if isinstance(one, WriteStatus)] == ["Running"]
    kinds = [one.type for one in world.job.status.conditions or []]
    assert kinds == ["Created", "WorkersCreated", "WorkersReady", "LauncherCreated", "Running"]


def test_a_status_that_only_tells_of_pods_is_left_for_later_and_what_follows_is_not() -> None:
    """The caller is asked to look again when it is due."""
    world = World(training_job(2), room=1)
    world.step()
    world.kubelet()
    outcome = told_later(world.job.status, world.look(), world.now + 1.0)
    assert (outcome.changes, outcome.again_at) == ((), world.now + 1.0)
    world.lose("job-worker-0")
    outcome = told_later(world.job.status, world.look(), world.now + 1.0)
    assert outcome.changes == (CreateWorker("job-worker-0", 0),)


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", "Succeeded"), ("Failed", "Failed")])
def test_a_job_ends_with_its_launcher_and_keeps_the_pods_that_its_policy_names(phase: str, code: str) -> None:
    world = started(cleanPodPolicy="Running")
    world.end("job-launcher", phase)
    world.settle()
    assert world.phase == code
    assert list(world.pods) == ["job-launcher"]


def test_a_lost_worker_leaves_the_list_and_is_replaced_under_a_new_number() -> None:
    world = started()
    world.lose("job-worker-1")
    world.step()
    assert world.listed == workers(0, 2, 3)
    world.settle()
    assert world.listed == world.running == workers(0, 2, 3, 4)
    assert world.job.status.restart_count is None


@pytest.mark.parametrize("policy", ["Never", None])
def test_a_worker_that_fails_by_itself_is_replaced_only_if_its_policy_says_so(policy: str | None) -> None:
    world = started(worker={"restartPolicy": policy})
    world.end("job-worker-1", "Failed")
    world.evict("job-worker-2")
    world.settle()
    assert world.running == workers(0, 3, 4)


def test_a_worker_that_fails_again_and_again_is_replaced_at_intervals() -> None:
    world = started()
    begun = world.now
    for _ in range(3):
        world.end(world.running[-1], "Failed")
        world.settle()
    assert world.now - begun >= 30.0


def test_a_lost_launcher_starts_everything_anew_and_counts_no_restart() -> None:
    world = started()
    before = {pod.metadata.uid for pod in world.pods.values()}
    world.lose("job-launcher")
    world.settle()
    assert world.phase == "Running"
    assert not before & {pod.metadata.uid for pod in world.pods.values()}
    assert world.job.status.restart_count is None


def test_a_launcher_that_fails_after_a_reclaim_counts_no_restart() -> None:
    world = started(restartPolicy="OnFailure", backoffLimit=0)
    world.lose("job-worker-0")
    world.step()
    world.now += 600
    world.end("job-launcher", "Failed")
    world.settle()
    assert (world.phase, world.job.status.restart_count) == ("Running", None)

    world.now += 700
    world.end("job-launcher", "Failed")
    world.settle()
    assert world.phase == "Failed"


def test_a_launcher_that_fails_restarts_the_job_after_a_pause_that_doubles() -> None:
    world = started(restartPolicy="OnFailure", backoffLimit=2)
    pauses = []
    for _ in range(2):
        at = world.now
        world.end("job-launcher", "Failed")
        world.settle()
        pauses.append(world.now - at)
        assert world.phase == "Running"
    assert pauses == [5.0, 10.0]
    assert world.job.status.restart_count == 2
    world.end("job-launcher", "Failed")
    world.settle()
    assert world.phase == "Failed"


def test_a_job_that_is_suspended_while_its_launcher_fails_counts_no_restart() -> None:
    world = started(restartPolicy="OnFailure")
    world.end("job-launcher", "Failed")
    world.step()
    world.suspend(suspended=True)
    world.settle()
    assert (world.phase, world.job.status.restart_count, world.pods) == ("Suspended", None, {})


def test_a_suspended_job_resumes_with_the_size_that_its_spec_has_then() -> None:
    world = started()
    world.suspend(suspended=True)
    world.settle()
    assert (world.phase, world.pods) == ("Suspended", {})
    world.resize(2)
    world.suspend(suspended=False)
    world.now += 1000
    resumed_at = instant_of(world.now).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.settle()
    assert (world.phase, world.running) == ("Running", workers(0, 1))
    assert {one.last_transition_time for one in world.job.status.conditions or []} == {resumed_at}, "of this start"


def test_the_annotation_suspends_a_job_but_never_one_that_has_ended() -> None:
    world = started()
    world.job = replace(world.job, metadata=replace(world.job.metadata, annotations={SUSPEND_ANNOTATION: "true"}))
    world.settle()
    assert world.phase == "Suspended"

    world = started()
    world.end("job-launcher", "Succeeded")
    world.settle()
    world.suspend(suspended=True)
    world.settle()
    assert world.phase == "Succeeded"


def test_a_running_job_grows_and_shrinks_with_its_spec() -> None:
    world = started()
    world.resize(6)
    world.settle()
    assert world.listed == world.running == workers(0, 1, 2, 3, 4, 5)
    world.resize(3)
    world.step()
    assert world.listed == workers(0, 1, 2)
    assert len(world.running) == 6, "the ranks leave before their pods do"
    at = world.now
    world.settle()
    assert world.running == workers(0, 1, 2)
    assert world.now == at + LEAVE_SECONDS
    world.resize(4)
    world.settle()
    assert world.running == workers(0, 1, 2, 6), "a number is never used twice in a run"


def test_a_scale_in_by_number_takes_the_highest_workers() -> None:
    world = started()
    world.ask(scale("in", "two", toDelete={"count": 2}))
    world.settle()
    assert world.running == workers(0, 1)
    assert world.scales["in-two"].status.phase == "ScaleSucceeded"
    assert (world.phase, world.job.status.current_scaler) == ("Running", None)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"toDelete": {}},
        {"toDelete": {"podNames": ["job-worker-9"]}},
        {"toDelete": {"podNames": ["job-worker-1", "job-worker-12"]}},
        {"toDelete": {"count": 4}},
        {"toDelete": {"count": 10**12}},
    ],
)
def test_a_scale_in_that_makes_no_sense_deletes_nothing_and_says_why(asked: dict[str, object]) -> None:
    world = started()
    world.ask(scale("in", "bad", **asked))
    world.settle()
    assert world.running == workers(0, 1, 2, 3)
    status = world.scales["in-bad"].status
    assert status.phase == "ScaleFailed"
    assert status.message


def test_a_scale_in_by_name_takes_no_worker_whose_name_only_begins_so() -> None:
    world = started(12)
    world.ask(scale("in", "one", toDelete={"podNames": ["job-worker-1"]}))
    world.settle()
    assert "job-worker-1" not in world.running
    assert {"job-worker-10", "job-worker-11"} <= set(world.running)
    assert world.scales["in-one"].status.phase == "ScaleSucceeded"


def test_a_scale_out_adds_workers_once_all_of_them_run() -> None:
    world = started()
    world.room = 5
    world.ask(scale("out", "two", toAdd={"count": 2}, timeout=300))
    for _ in range(5):
        world.step()
        world.kubelet()
    assert world.phase == "Scaling"
    assert world.listed == workers(0, 1, 2, 3)
    assert scale_out_of(world.pods["job-worker-4"]) == "two"
    world.room = 6
    world.settle()
    assert world.listed == world.running == workers(0, 1, 2, 3, 4, 5)
    assert world.scales["out-two"].status.phase == "ScaleSucceeded"


def test_a_scale_out_without_room_fails_in_time_and_deletes_only_its_own_pods() -> None:
    world = started()
    world.room = 5
    world.ask(scale("out", "two", toAdd={"count": 2}, timeout=30))
    at = world.now
    world.settle()
    assert world.now >= at + 30
    assert world.scales["out-two"].status.phase == "ScaleFailed"
    assert world.listed == world.running == workers(0, 1, 2, 3)
    assert not set(world.pods) - {"job-launcher", *workers(0, 1, 2, 3)}


def test_a_worker_that_is_lost_during_a_scale_out_is_replaced() -> None:
    world = started()
    world.room = 4
    world.ask(scale("out", "one", toAdd={"count": 1}, timeout=300))
    for _ in range(4):
        world.step()
        world.kubelet()
    world.lose("job-worker-0")
    world.room = 5
    world.settle()
    assert len(world.running) == 5
    assert world.listed == world.running
    assert "job-worker-0" not in world.running


def test_scalings_that_a_suspension_interrupts_fail_and_are_not_taken_up_again() -> None:
    world = started()
    world.room = 4
    world.ask(scale("out", "one", toAdd={"count": 1}, timeout=300))
    world.step()
    world.step()
    world.suspend(suspended=True)
    world.settle()
    assert world.scales["out-one"].status.phase == "ScaleFailed"
    world.suspend(suspended=False)
    world.settle()
    assert world.running == workers(0, 1, 2, 3)


def test_a_worker_that_fails_before_the_launcher_exists_fails_a_job_that_does_not_restart_it() -> None:
    world = World(training_job(2, worker={"restartPolicy": "Never"}), room=1)
    world.settle()
    world.end("job-worker-0", "Failed")
    world.settle()
    assert world.phase == "Failed"


def test_a_running_job_of_et_operator_goes_on_when_this_operator_takes_over() -> None:
    world = started()
    # Pods of et-operator have no run, its launcher no list in an annotation, and its status none of our fields.
    for name, pod in list(world.pods.items()):
        labels = {key: value for key, value in pod.metadata.labels.items() if key != RUN_LABEL}
        annotations = {key: value for key, value in pod.metadata.annotations.items() if key != HOSTS_ANNOTATION}
        metadata = replace(pod.metadata, labels=labels, annotations=annotations)
        world.pods[name] = replace(pod, metadata=metadata)
    status = world.job.status
    fields = {"run": None, "next_index": None, "observed_replicas": None, "hosts_changed_at": None}
    world.job = replace(world.job, status=replace(status, **fields))
    before = {pod.metadata.uid for pod in world.pods.values()}
    world.made.clear()
    world.settle()
    assert {pod.metadata.uid for pod in world.pods.values()} == before
    assert [change.by_command for change in world.made if isinstance(change, WriteHosts)] == [True]

    world.lose("job-worker-3")
    world.settle()
    assert world.listed == world.running == workers(0, 1, 2, 4)


def test_what_et_operator_has_written_meanwhile_is_taken_back() -> None:
    world = started()
    world.lose("job-launcher")
    world.settle()
    run = world.job.status.run
    fields = {"run": None, "next_index": None, "observed_replicas": None, "hosts_changed_at": None}
    world.job = replace(world.job, status=replace(world.job.status, **fields))
    before, text = set(world.pods), world.pods["job-launcher"].metadata.annotations[HOSTS_ANNOTATION]
    world.settle()
    assert (set(world.pods), world.job.status.run) == (before, run)
    assert world.pods["job-launcher"].metadata.annotations[HOSTS_ANNOTATION] != text, "shown anew, it counts again"
    assert world.listed == world.running


def test_workers_that_are_lost_together_get_a_number_each() -> None:
    world = started()
    world.lose("job-worker-1")
    world.lose("job-worker-2")
    world.settle()
    assert world.listed == world.running == workers(0, 3, 4, 5)


def test_a_job_that_has_lost_all_its_workers_keeps_its_list_until_new_ones_run() -> None:
    """Horovod would end the job for an empty list, and waits for ten minutes for hosts that are not there."""
    world = started(2)
    world.room = 0
    world.lose("job-worker-0")
    world.lose("job-worker-1")
    world.settle()
    assert world.listed == workers(0, 1)
    world.room = 2
    world.settle()
    assert world.listed == world.running == workers(2, 3)


@pytest.mark.parametrize("count", [0, -1, 3, 10**12])
def test_a_scale_out_that_makes_no_sense_creates_nothing_and_says_why(count: int) -> None:
    world = started(worker={"maxReplicas": 6})
    world.ask(scale("out", "bad", toAdd={"count": count}))
    world.settle()
    assert (world.running, world.scales["out-bad"].status.phase) == (workers(0, 1, 2, 3), "ScaleFailed")
    assert world.scales["out-bad"].status.message


def test_a_replacement_takes_no_number_that_a_scale_out_has_taken_already() -> None:
    """The operator ends between the two writes with which a ScaleOut begins, and a worker is lost meanwhile."""
    world = started(2)
    world.ask(scale("out", "one", toAdd={"count": 1}))
    world.step(only=1)
    world.lose("job-worker-0")
    world.settle()
    assert world.listed == world.running == workers(1, 2, 3)


def test_a_job_that_shrinks_does_without_the_workers_that_it_has_lost() -> None:
    world = started(2)
    world.room = 1
    world.resize(1)
    world.lose("job-worker-0")
    world.settle()
    assert world.listed == world.running == workers(1)


def test_a_scale_out_that_is_done_is_not_done_again_when_one_of_its_workers_is_lost() -> None:
    """The operator ends before it says that the ScaleOut has succeeded."""
    world = started(2)
    world.ask(scale("out", "one", toAdd={"count": 1}))
    while world.listed != workers(0, 1, 2):
        *others, last = world.look().changes or [None]
        is_success = isinstance(last, WriteScale) and last.status.phase == "ScaleSucceeded"
        world.step(only=len(others) if is_success else None)
        world.kubelet()
    assert world.scales["out-one"].status.phase == "Scaling"
    world.lose("job-worker-2")
    world.step(only=1)
    world.settle()
    assert world.scales["out-one"].status.phase == "ScaleSucceeded"
    assert world.listed == world.running == workers(0, 1, 3)
