"""What a PyTorchJob and its pods are taken for."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Phase, Result, SupervisedJob
from supervisor.jobs.kind import Admission, JobReference, JobState
from supervisor.jobs.replicated import ReplicatedJob
from tests.supervisor.jobs.pytorchjob.pytorchjob_objects import (
    ELASTIC_POLICY,
    KIND,
    MADE,
    NAME,
    OPTED_IN,
    PREFIX,
    STARTED,
    job,
    pod,
    running,
    spec,
    state,
    workers,
)

NOW = MADE + 1000
_OURS = {**OPTED_IN, f"{PREFIX}suspended-by": "elastic-job-supervisor"}


def observed(seen: JobState[ReplicatedJob], known: SupervisedJob | None = None) -> SupervisedJob:
    value = KIND.observe(seen, known, NOW)
    assert value is not None
    return value


def test_a_new_job_waits_since_it_was_made() -> None:
    value = observed(state(*workers(3)))
    asked = value.spec
    assert (value.name, value.uid) == (NAME, "job-uid")
    assert (asked.min_workers, asked.requested_workers, asked.max_workers, asked.start_workers) == (2, 4, 6, 2)
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.WAITING, MADE)
    assert value.observed.hosts == {Host(f"bert-worker-{number}") for number in range(4)}


@pytest.mark.parametrize(
    ("asked", "goes_on"),
    [
        (spec(elastic=ELASTIC_POLICY), True),
        (spec(elastic={"minReplicas": 2, "rdzvBackend": "c10d"}), False),
        (spec(elastic=ELASTIC_POLICY, restart_policy="Never"), False),
        (spec(elastic={"minReplicas": 2}, command=["torchrun", "--rdzv-backend=kubeai", "train.py"]), True),
        (spec(elastic={"minReplicas": 2}, command=["sh", "-c", "torchrun --rdzv_backend kubeai train.py"]), True),
        (spec(elastic={"minReplicas": 2}, command=["torchrun", "--rdzv-backend=kubeai2"]), False),
        (spec(), False),
    ],
)
def test_only_members_of_the_rendezvous_go_on_without_a_host(
    asked: dict[str, Any],
    goes_on: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """And none whose pods may not be deleted."""
    capabilities = observed(state(asked=asked)).spec.capabilities
    assert (Capability.FIXED_HOSTS in capabilities) is not goes_on
    assert (Capability.REPLACES_HOSTS in capabilities) is goes_on


def test_a_job_without_an_elastic_policy_has_one_size_and_its_master_counts() -> None:
    value = observed(state(asked=spec(3, master=True)))
    assert (value.spec.min_workers, value.spec.requested_workers, value.spec.max_workers) == (4, 4, 4)
    assert Host("bert-master-0") in value.observed.hosts


@pytest.mark.parametrize(
    ("elastic", "least"),
    [
        ({"minReplicas": 1, "maxReplicas": 4}, 2),
        ({"minReplicas": 3, "maxReplicas": 4}, 3),
        ({"maxReplicas": 4}, 4),
        ({}, 4),
    ],
)
def test_a_job_with_a_master_keeps_a_worker(elastic: dict[str, Any], least: int) -> None:
    """And one without a minimum runs at its size only, as the operator starts its agents for just that."""
    assert observed(state(asked=spec(3, master=True, elastic=elastic))).spec.min_workers == least


def test_a_job_that_trains_already_is_taken_over() -> None:
    value = observed(running())
    assert value.decision.phase is Phase.RUNNING
    assert value.observed.hosts == {Host(f"bert-worker-{number}") for number in range(4)}
    assert (value.observed.run, value.observed.instance) == (1, "2023-11-14T22:23:20+00:00")


@pytest.mark.parametrize(
    ("others", "begun"),
    [
        ([], False),
        ([pod("worker-3", phase="Pending")], False),
        ([pod("worker-3", phase="Pending", node="")], True),
        ([pod("worker-3")], True),
    ],
)
def test_a_run_begins_once_no_pod_is_starting(
    others: list[Any],
    begun: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """A pod that no node has room for is not waited for."""
    assert observed(state(*workers(3), *others, status=STARTED)).observed.running is begun


def test_another_start_is_another_run_and_a_replaced_pod_is_not() -> None:
    first = observed(running())
    replaced = observed(state(*workers(3), pod("worker-3", phase="Pending"), status=STARTED), first)
    assert (replaced.observed.run, replaced.observed.running) == (1, True)
    again = observed(running(status={"startTime": "2023-11-14T22:33:20Z"}), replaced)
    assert (again.observed.run, again.observed.running) == (2, True)


def test_a_start_in_the_second_of_an_earlier_one_is_another_run() -> None:
    """A queue can preempt a job and admit it again within the second of which its controller notes the start."""
    held = replace(state(asked=spec(suspend=True)), admission=Admission("no quota"))
    suspended = observed(held, observed(running()))
    assert (suspended.observed.run, suspended.observed.running) == (1, False)
    again = observed(running(), suspended)
    assert (again.observed.run, again.observed.running) == (2, True)
    assert observed(running(), again).observed.run == 2


def test_a_resumed_job_has_a_run_once_its_controller_has_noted_the_start() -> None:
    """Its pods may run before that, beside the time of the last start."""
    suspended = observed(state(asked=spec(suspend=True), annotations=_OURS), observed(running()))
    resumed = observed(running(conditions=["Suspended"]), suspended)
    assert (resumed.observed.run, resumed.observed.running) == (1, False)
    noted = observed(running(status={"startTime": "2023-11-14T22:33:20Z"}), resumed)
    assert (noted.observed.run, noted.observed.running) == (2, True)


@pytest.mark.parametrize(
    ("condition", "result"), [("Succeeded", Result.SUCCEEDED), ("Failed", Result.FAILED), ("Restarting", None)]
)
def test_the_end_is_what_the_operator_says(condition: str, result: Result | None) -> None:
    assert observed(running(conditions=[condition]), observed(running())).observed.result is result


def test_a_job_of_which_no_pod_runs_any_more_does_not_run() -> None:
    value = observed(state(pod("worker-0", phase="Failed"), status=STARTED), observed(running()))
    assert not value.observed.running


def test_a_persons_suspension_is_left_alone_and_ours_is_kept() -> None:
    asked = spec(elastic=ELASTIC_POLICY, suspend=True)
    assert KIND.observe(state(asked=asked), None, NOW) is None
    kept = observed(state(asked=asked, annotations=_OURS, conditions=["Suspended"]))
    assert (kept.decision.phase, kept.decision.waiting_since) == (Phase.SUSPENDED, NOW)


def test_a_job_that_a_person_resumes_is_taken_up_anew() -> None:
    known = observed(running())
    decision = replace(known.decision, phase=Phase.SUSPENDED, generation=5, hosts=frozenset())
    assert KIND.observe(state(status=STARTED), replace(known, decision=decision), NOW) is None


def test_a_job_that_another_controller_runs_is_left_to_it() -> None:
    assert state(asked=spec(managedBy="kueue.x-k8s.io/multikueue")).job.elsewhere


@pytest.mark.parametrize("broken", [{"pytorchReplicaSpecs": 7}, {"pytorchReplicaSpecs": {}}, []])
def test_what_is_not_understood_is_not_supervised(broken: Any) -> None:
    """And the other jobs are still read."""
    assert job(asked=broken).spec is None
    assert KIND.observe(state(asked=broken), None, NOW) is None


def test_what_is_no_object_at_all_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        KIND.decode(b"[]")


def test_a_pod_belongs_to_the_job_that_owns_it() -> None:
    assert KIND.reference(pod("worker-0")) == JobReference(NAME, "job-uid")
    assert KIND.reference(pod("worker-0", ownerReferences=[])) is None
