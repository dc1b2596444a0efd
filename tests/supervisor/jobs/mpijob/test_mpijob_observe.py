"""What an MPIJob and its pods are taken for."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, OnLoss, Phase, Result, SupervisedJob
from supervisor.jobs.kind import JobPodRole, JobReference, JobState
from supervisor.jobs.mpijob.kind import MpiJob
from tests.supervisor.jobs.mpijob.mpijob_objects import (
    DISCOVERY,
    KIND,
    MADE,
    NAME,
    OPTED_IN,
    PREFIX,
    job,
    pod,
    running,
    spec,
    state,
    workers,
)

NOW = MADE + 1000
_OURS = {f"{PREFIX}suspended-by": "elastic-job-supervisor"}
_SUSPENDED = spec(suspend=True)


def observed(seen: JobState[MpiJob], known: SupervisedJob | None = None) -> SupervisedJob:
    value = KIND.observe(seen, known, NOW)
    assert value is not None
    return value


def suspended(known: SupervisedJob, *, in_place: bool = True) -> SupervisedJob:
    """That job after the supervisor has decided to suspend it."""
    hosts = frozenset[Host]() if in_place else known.decision.hosts
    return replace(known, decision=replace(known.decision, phase=Phase.SUSPENDED, generation=5, hosts=hosts))


def test_a_new_job_waits_since_it_was_made() -> None:
    value = observed(state(*workers(3)))
    asked = value.spec
    assert (value.name, value.uid) == (NAME, "job-uid")
    assert (asked.min_workers, asked.requested_workers, asked.max_workers, asked.start_workers) == (2, 4, 4, 2)
    assert asked.capabilities == ELASTIC
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.WAITING, MADE)
    assert value.observed.hosts == {Host(f"bert-worker-{number}") for number in range(4)}


@pytest.mark.parametrize(
    ("parts", "since"),
    [
        ({"status": {"startTime": "2023-11-14T22:23:20Z"}}, MADE + 600),
        ({"status": {"startTime": "2023-11-14T22:23:20Z"}, "conditions": ["Suspended"]}, NOW),
    ],
)
def test_a_job_that_is_registered_anew_waits_since_its_present_start(parts: dict[str, Any], since: float) -> None:
    """It may have been suspended by a person for longer than it may wait; its operator notes the resume later."""
    assert observed(state(**parts)).decision.waiting_since == since


def test_a_job_that_trains_already_is_taken_over() -> None:
    """With the workers that run, also those that are excluded; the launcher's pod has another name in each run."""
    excluded = pod("worker-1", labels={"training.kubeflow.org/job-role": "excluded"})
    value = observed(state(pod("worker-0"), excluded, pod("launcher-x7k2p"), asked=spec(2)))
    assert value.decision.phase is Phase.RUNNING
    assert value.observed.hosts == {Host("bert-worker-0"), Host("bert-worker-1")}
    assert value.spec.launcher_host == Host("bert-launcher-x7k2p")
    assert (value.observed.run, value.observed.instance) == (1, "launcher-x7k2p-uid")


@pytest.mark.parametrize(
    ("others", "begun"),
    [
        ([], False),
        ([pod("worker-3", phase="Pending")], False),
        ([pod("worker-3", phase="Pending", node="")], True),
        ([pod("worker-3")], True),
    ],
)
def test_a_run_begins_with_its_workers_and_not_with_its_launcher(
    others: list[Any],
    begun: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """The launcher starts beside them; a worker that no node has room for is not waited for."""
    value = observed(state(*workers(3), *others, pod("launcher-x7k2p")))
    assert value.observed.running == begun


def test_a_run_that_lost_a_worker_before_it_was_registered_has_begun() -> None:
    """The operator says Running since all of them ran, also of a job that never starts with fewer."""
    asked = spec(command="mpirun -np 4 python train.py")
    value = observed(state(*workers(3), pod("launcher-x7k2p"), conditions=["Running"], asked=asked))
    assert value.decision.phase is Phase.RUNNING


def test_a_run_goes_on_without_workers_that_it_lost() -> None:
    known = observed(running())
    left = observed(state(*workers(1), pod("launcher-x7k2p")), known)
    assert left.observed.running
    assert left.observed.hosts == {Host("bert-worker-0")}


def test_a_launcher_that_its_job_makes_anew_is_another_run() -> None:
    known = observed(running())
    failed = pod("launcher-x7k2p", phase="Failed", code=1)
    anew = pod("launcher-zzzzz", creationTimestamp="2023-11-14T22:20:00Z")
    value = observed(state(*workers(4), failed, anew, status={"replicaStatuses": {"Launcher": {"failed": 1}}}), known)
    assert (value.observed.run, value.observed.restarts, value.observed.running) == (2, 1, True)


def test_a_launcher_that_failed_before_is_no_other_run() -> None:
    """Its Job keeps its pod, also while the job is suspended and the last one is gone."""
    known = observed(running())
    value = observed(state(pod("launcher-aaaaa", phase="Failed", code=1)), known)
    assert (value.observed.run, value.observed.running, value.observed.instance) == (1, False, "launcher-x7k2p-uid")


@pytest.mark.parametrize(
    ("command", "least", "least_to_start"),
    [
        (f"horovodrun --min-np 2 {DISCOVERY} python train.py", 2, 2),
        (f"horovodrun -np $(wc -l </etc/mpi/hostfile) {DISCOVERY} python train.py", 2, 2),
        (f"horovodrun -np 4 {DISCOVERY} python train.py", 2, 4),
        (f"horovodrun --num-proc=4 {DISCOVERY} python train.py", 2, 4),
        (f"horovodrun -np ${{SIZE}} {DISCOVERY} python train.py", 2, 4),
        ("mpirun -np 4 python train.py", 4, 4),
        ("mpirun python train.py", 4, 4),
    ],
)
def test_only_a_launcher_that_discovers_its_hosts_is_elastic(command: str, least: int, least_to_start: int) -> None:
    """And it starts smaller only where its command has no number of processes of its own."""
    asked = observed(running(asked=spec(command=command, env={"SIZE": "4"}))).spec
    assert (asked.min_workers, asked.start_workers) == (least, least_to_start)


def test_a_job_that_was_resumed_smaller_still_asks_for_all() -> None:
    asked = observed(running(2, asked=spec(2), annotations={**OPTED_IN, f"{PREFIX}requested-workers": "4"})).spec
    assert (asked.min_workers, asked.requested_workers) == (2, 4)


@pytest.mark.parametrize(
    "parts",
    [
        {"annotations": {}},
        {"conditions": ["Succeeded"]},
        {"conditions": ["Failed"], "status": {"completionTime": "2023-11-14T22:20:00Z"}},
        {"asked": _SUSPENDED},
        {"asked": _SUSPENDED, "annotations": {**OPTED_IN, **_OURS, f"{PREFIX}job-status": "timeout"}},
        {"deletionTimestamp": "2023-11-14T22:14:20Z"},
        {"asked": {"mpiReplicaSpecs": {"Worker": "what"}}},
        {"asked": spec(0)},
    ],
)
def test_what_is_over_or_a_persons_own_is_left_alone(parts: dict[str, Any]) -> None:
    assert KIND.observe(state(**parts), None, NOW) is None


@pytest.mark.parametrize(
    ("parts", "queued"),
    [
        ({}, False),
        ({"asked": spec(managedBy="kueue.x-k8s.io/multikueue")}, True),
        ({"asked": spec(managedBy="kubeflow.org/mpi-operator")}, False),
    ],
)
def test_what_another_cluster_runs_is_left_to_it(
    parts: dict[str, Any],
    queued: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert state(**parts).job.elsewhere == queued


def test_an_evicted_worker_is_not_the_end_of_its_job() -> None:
    """The operator says Failed for ever, and runs the job on."""
    value = observed(running(conditions=["Failed"]), observed(running()))
    assert value.observed.result is None


def test_a_job_that_a_person_suspends_is_theirs() -> None:
    assert KIND.observe(running(asked=_SUSPENDED), observed(running()), NOW) is None


def test_a_job_that_was_suspended_here_stays_suspended_after_a_restart() -> None:
    value = observed(state(asked=_SUSPENDED, annotations={**OPTED_IN, **_OURS}))
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.SUSPENDED, NOW)


@pytest.mark.parametrize(("in_place", "freed"), [(True, True), (False, False)])
def test_a_job_that_a_person_resumes_is_taken_up_anew(*, in_place: bool, freed: bool) -> None:
    """One that is about to be suspended has not been resumed."""
    known = suspended(observed(running()), in_place=in_place)
    assert (KIND.observe(running(), known, NOW) is None) == freed


@pytest.mark.parametrize(("status", "result"), [("timeout", Result.TIMED_OUT), ("stopped", Result.TERMINATED)])
def test_a_job_that_was_ended_here_is_over_until_a_person_resumes_it(status: str, result: Result) -> None:
    """It waited for too long, or a person has stopped it."""
    marked = {**OPTED_IN, **_OURS, f"{PREFIX}job-status": status}
    known = observed(state(asked=_SUSPENDED, annotations=marked), suspended(observed(running())))
    assert known.observed.result is result
    assert KIND.observe(state(annotations=marked), known, NOW) is None


@pytest.mark.parametrize(
    ("seen", "result"),
    [
        (running(conditions=["Succeeded"]), Result.SUCCEEDED),
        (state(*workers(4), pod("launcher-x7k2p", code=0)), Result.SUCCEEDED),
        (
            state(conditions=["Failed"], status={"completionTime": "2023-11-14T22:20:00Z"}),
            Result.FAILED,
        ),
        (running(), None),
    ],
)
def test_a_job_ends_as_its_operator_or_its_launcher_says(seen: JobState[MpiJob], result: Result | None) -> None:
    assert observed(seen, observed(running())).observed.result is result


def test_pods_belong_to_the_job_that_made_them() -> None:
    """A worker by its owner; a launcher, which a Job owns, by its labels."""
    assert KIND.reference(pod("worker-0")) == JobReference(NAME, "job-uid")
    assert KIND.reference(pod("launcher-x7k2p")) == JobReference(NAME)
    unrelated = {"training.kubeflow.org/operator-name": "pytorch-operator"}
    assert KIND.reference(pod("launcher-x7k2p", labels=unrelated)) is None
    of_another_kind = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bert-launcher", "uid": "u", "controller": True}
    ]
    assert KIND.reference(pod("launcher-x7k2p", ownerReferences=of_another_kind)) is None


@pytest.mark.parametrize(
    ("role", "wanted"),
    [("launcher", JobPodRole.LAUNCHER), ("worker", JobPodRole.WORKER), ("excluded", JobPodRole.WORKER), ("what", None)],
)
def test_an_excluded_worker_is_still_a_worker(role: str, wanted: JobPodRole | None) -> None:
    assert KIND.role({"training.kubeflow.org/job-role": role}) is wanted


def test_a_run_asks_for_its_launcher_and_its_workers() -> None:
    request = job().resource_request
    assert request is not None
    assert request.worker.requests == {"nvidia.com/gpu": 1000}
    assert request.launcher is not None


def test_what_is_not_understood_is_a_job_all_the_same() -> None:
    assert job(asked={}).spec is None
    assert job(status={"conditions": "what"}).conditions == frozenset()


def test_what_a_job_wants_on_a_loss_is_an_annotation() -> None:
    """What is not understood is said, and the job is supervised without it."""
    wants = {f"{PREFIX}on-loss": "wait", f"{PREFIX}worker-multiple": "2"}
    value = observed(state(*workers(4), annotations={**OPTED_IN, **wants}))
    assert (value.spec.on_loss, value.spec.worker_multiple, len(value.spec.ignored)) == (OnLoss.SHRINK, 2, 1)
