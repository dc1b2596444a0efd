"""Observes spec and facts from a TrainingJob and its pods."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import ELASTIC, OnLoss, Phase, Result, SupervisedJob
from supervisor.jobs.kind import Admission
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainingjob.objects import JobPhase
from tests.supervisor.jobs.trainingjob.trainingjob_objects import (
    COMMAND,
    MADE,
    OPTED_IN,
    PREFIX,
    State,
    job,
    pod,
    running,
    spec,
    state,
    workers,
)

NOW = MADE + 1000
_OURS = {f"{PREFIX}suspended-by": "elastic-job-supervisor"}
_TIMED_OUT = {**OPTED_IN, f"{PREFIX}job-suspended": "true", f"{PREFIX}job-status": "timeout", **_OURS}


def taken(seen: State, known: SupervisedJob | None = None) -> SupervisedJob:
    value = TRAININGJOB.observe(seen, known, NOW)
    assert value is not None
    return value


def in_phase(known: SupervisedJob, phase: Phase, run: int = 1) -> SupervisedJob:
    return replace(known, decision=replace(known.decision, phase=phase, run=run))


def test_a_new_job_waits_since_it_was_made() -> None:
    """Bounds from its spec, the hosts that its operator would make, the launcher beside them."""
    value = taken(state(job(), workers(3)))
    assert (value.name, value.uid) == (JobName("team/trainingjob.bert"), "job-uid")
    asked = value.spec
    assert (asked.min_workers, asked.requested_workers, asked.max_workers, asked.start_workers) == (2, 8, 128, 2)
    assert (asked.capabilities, asked.launcher_host) == (ELASTIC, Host("bert-launcher"))
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.WAITING, MADE)
    assert (value.observed.run, value.observed.running) == (0, False)
    assert value.observed.hosts == frozenset(job().worker_names(8))


def conditions(**transitions: str) -> list[dict[str, str]]:
    """What the operator says that it has done, each by its time."""
    return [{"type": each, "status": "True", "lastTransitionTime": at} for each, at in transitions.items()]


@pytest.mark.parametrize(
    ("status", "since"),
    [
        ({"phase": "Created", "conditions": []}, NOW),
        ({"phase": "Created", "conditions": conditions(Created="2023-11-14T22:23:20Z")}, MADE + 600),
        (
            {
                "phase": "Created",
                "conditions": conditions(Created="2023-11-14T22:13:20Z", WorkersCreated="2023-11-14T22:23:20Z"),
            },
            MADE + 600,
        ),
        ({"phase": "Failed", "restartCount": 1, "conditions": conditions(Failed="2023-11-14T23:59:59Z")}, NOW),
    ],
)
def test_a_job_that_is_registered_anew_waits_since_its_present_start(status: dict[str, Any], since: float) -> None:
    """It may have trained for days, been suspended by a person, and be older than it may wait."""
    annotations = {**OPTED_IN, f"{PREFIX}max-wait-time": "600"}
    value = taken(state(job(status=status, annotations=annotations), []))
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.WAITING, since)


def test_a_job_that_trains_already_is_taken_over() -> None:
    """With the workers that run, those among them that are asked to end, and without those that wait."""
    leaving = pod("worker-1", deletionTimestamp="2023-11-14T22:14:20Z")
    pods = [pod("worker-0"), leaving, pod("worker-2", phase="Pending"), pod("launcher")]
    value = taken(state(job(status={"phase": "Running"}), pods))
    assert value.decision.phase is Phase.RUNNING
    assert value.observed.hosts == value.decision.hosts == {Host("bert-worker-0"), Host("bert-worker-1")}
    assert (value.observed.run, value.observed.running, value.observed.instance) == (1, True, "launcher-uid")


@pytest.mark.parametrize(
    ("annotations", "template", "wanted"),
    [
        ({f"{PREFIX}managed-by-job-supervisor": "true"}, {}, True),
        ({f"{PREFIX}spot-instance": "true"}, {}, True),
        ({}, {f"{PREFIX}managed-by-job-supervisor": "true"}, True),
        ({}, {}, False),
        ({f"{PREFIX}spot-instance": "false"}, {}, False),
    ],
)
def test_only_jobs_that_ask_for_it_are_touched(
    annotations: dict[str, str],
    template: dict[str, str],
    wanted: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """By either annotation, of the job or of what its pods are made from."""
    asked = spec()
    asked["etReplicaSpecs"]["worker"]["template"]["metadata"] = {"annotations": template}
    assert (TRAININGJOB.observe(state(job(annotations=annotations, asked=asked), []), None, NOW) is not None) == wanted


def test_a_pods_annotation_is_enough() -> None:
    assert (
        TRAININGJOB.observe(state(job(annotations={}), [pod("worker-0", annotations=OPTED_IN)]), None, NOW) is not None
    )


def test_a_job_whose_pods_alone_opt_in_is_not_lost_with_them() -> None:
    """While it is suspended there are none; whoever takes the annotation from running pods opts out."""
    known = taken(state(job(annotations={}), [pod("worker-0", annotations=OPTED_IN)]))
    assert TRAININGJOB.observe(state(job(annotations={}), []), known, NOW) is not None
    assert TRAININGJOB.observe(state(job(annotations={}), [pod("worker-0")]), known, NOW) is None
    marked = {f"{PREFIX}job-suspended": "true", f"{PREFIX}suspended-by": "elastic-job-supervisor"}
    assert taken(state(job(annotations=marked), [])).decision.phase is Phase.SUSPENDED


@pytest.mark.parametrize(
    "parts",
    [
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed", "restartCount": 3}},
        {"status": {"phase": "Suspended"}, "annotations": {**OPTED_IN, f"{PREFIX}job-suspended": "true"}},
        {"status": {"phase": "Suspended"}, "annotations": _TIMED_OUT},
        {"deletionTimestamp": "2023-11-14T22:14:20Z"},
        {"asked": {"etReplicaSpecs": {"worker": "what"}}},
        {"asked": spec(0)},
    ],
)
def test_what_is_over_or_a_persons_own_is_left_alone(parts: dict[str, Any]) -> None:
    assert TRAININGJOB.observe(state(job(**parts), []), None, NOW) is None


def test_a_job_that_a_person_suspends_is_theirs() -> None:
    known = taken(running())
    held = job(status={"phase": "Running"}, annotations={**OPTED_IN, f"{PREFIX}job-suspended": "true"})
    assert TRAININGJOB.observe(state(held, workers(8)), known, NOW) is None


def test_a_job_whose_suspension_a_person_takes_back_is_resumed_when_there_is_capacity() -> None:
    """Its operator leaves it Suspended, so that the annotation alone would bring nothing back."""
    freed = state(job(status={"phase": "Suspended"}), [])
    value = taken(freed)
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.SUSPENDED, NOW)
    assert value.decision.reason == "The suspension was lifted; waiting for capacity."
    assert taken(freed, value) == value
    resuming = in_phase(value, Phase.RESUMING)
    assert taken(state(job(status={"phase": "Created"}), []), resuming).decision == resuming.decision


@pytest.mark.parametrize("phase", list(Phase))
def test_a_job_that_is_suspended_by_nobody_is_taken_up_whatever_is_stored(phase: Phase) -> None:
    """Its operator writes Suspended from an older copy after a person has suspended and resumed it at once."""
    left = state(job(status={"phase": "Suspended"}), [])
    known = in_phase(taken(running()), phase)
    goes_on = phase not in (Phase.WAITING, Phase.RUNNING, Phase.SHRINKING)
    assert (TRAININGJOB.observe(left, known, NOW) is not None) is goes_on
    assert taken(left).decision.reason == "The suspension was lifted; waiting for capacity."


@pytest.mark.parametrize(
    "seen",
    [
        state(job(status={"phase": "Suspended"}), [pod("launcher")]),
        replace(state(job(status={"phase": "Suspended"}), []), admission=Admission("It waits in its queue.")),
        state(job(status={"phase": "Created"}), []),
    ],
)
def test_a_job_whose_pods_go_or_which_its_queue_holds_is_suspended_by_somebody(seen: State) -> None:
    known = taken(running())
    assert taken(seen, known).decision == known.decision


def test_a_job_that_a_person_starts_again_by_hand_is_its_operators() -> None:
    """They have patched its status as well: nobody here must suspend what comes up then."""
    value = taken(state(job(status={"phase": "Suspended"}), []))
    again = state(job(status={"phase": "Created", "conditions": []}), workers(3))
    assert TRAININGJOB.observe(again, value, NOW) is None
    assert taken(again).decision.phase is Phase.WAITING


def test_a_job_that_we_suspended_is_still_ours_when_nothing_else_is_known_of_it() -> None:
    marked = {**OPTED_IN, f"{PREFIX}job-suspended": "true", f"{PREFIX}suspended-by": "elastic-job-supervisor"}
    value = taken(state(job(status={"phase": "Suspended"}, annotations=marked), []))
    assert (value.decision.phase, value.decision.waiting_since) == (Phase.SUSPENDED, NOW)


def test_the_pods_of_a_job_that_we_suspended_go_without_a_word() -> None:
    """Its operator deletes one after the other; what is to be known is that none runs any more."""
    known = in_phase(taken(running()), Phase.SUSPENDED)
    marked = {**OPTED_IN, f"{PREFIX}job-suspended": "true", f"{PREFIX}suspended-by": "elastic-job-supervisor"}
    told = [
        taken(state(job(status={"phase": "Running"}, annotations=marked), [*workers(left), pod("launcher")]), known)
        for left in (8, 5, 1, 0)
    ]
    assert told == [told[0]] * 4
    assert told[0].observed.running
    assert not taken(state(job(status={"phase": "Suspended"}, annotations=marked), []), told[0]).observed.running


def test_a_new_launcher_is_a_new_run() -> None:
    known = taken(running())
    again = state(running().job, [*workers(8), pod("launcher", uid="second")])
    value = taken(again, known)
    assert (value.observed.run, value.observed.instance) == (2, "second")
    assert taken(again, value) == value


def test_a_run_has_the_number_that_was_ordered() -> None:
    known = in_phase(taken(running()), Phase.RESUMING, run=4)
    value = taken(state(running().job, [*workers(8), pod("launcher", uid="second")]), known)
    assert value.observed.run == 4


@pytest.mark.parametrize(
    ("launcher", "code"),
    [
        (pod("launcher", phase="Failed", code=255), 255),
        (pod("launcher", phase="Failed"), 1),
        (None, -9),
    ],
)
def test_a_launcher_that_is_not_there_any_more_has_ended(launcher: Any, code: int) -> None:
    """With its own code, with one that stands for a failure, or killed with its pod."""
    pods = [*workers(8), *([launcher] if launcher else [])]
    value = taken(state(running().job, pods), taken(running()))
    assert (value.observed.running, value.observed.exit_code, value.observed.run) == (False, code, 1)
    assert taken(state(running().job, pods), value) == value


@pytest.mark.parametrize(
    ("status", "lost"),
    [
        ({"phase": "Running"}, True),
        ({"phase": "Scaling"}, True),
        ({"phase": "Created", "conditions": conditions(LauncherCreated="2023-11-14T22:23:20Z")}, True),
        ({"phase": "Created", "conditions": conditions(WorkersCreated="2023-11-14T22:23:20Z")}, False),
        ({"phase": "Failed", "restartCount": 2}, False),
        ({"phase": ""}, False),
        ({"phase": "Suspended"}, False),
    ],
)
def test_a_launcher_is_lost_while_its_operator_believes_that_it_is_there(
    status: dict[str, Any],
    lost: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Then nobody makes another one; a restart, or a start that has not come so far, is something else."""
    gone = state(job(status=status), workers(8))
    value = taken(gone, taken(running()))
    assert value.observed.launcher_lost_since == (NOW if lost else None)
    later = TRAININGJOB.observe(gone, value, NOW + 5)
    assert later == value
    assert taken(running(), value).observed.launcher_lost_since is None
    marked = {**OPTED_IN, f"{PREFIX}job-suspended": "true", **_OURS}
    suspended_now = state(replace(gone.job, annotations=marked, suspended=True), [])
    assert taken(suspended_now, value).observed.launcher_lost_since is None


def test_a_launcher_has_ended_as_soon_as_its_container_has() -> None:
    """Its pod says so a second later, and its operator counts a restart then."""
    ended = state(running().job, [*workers(8), pod("launcher", code=255)])
    value = taken(ended, taken(running()))
    assert (value.observed.running, value.observed.exit_code) == (False, 255)
    well = state(running().job, [pod("launcher", code=0)])
    assert taken(well, in_phase(taken(running()), Phase.STOPPING)).observed.result is Result.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "phase", "result"),
    [
        ({"phase": "Succeeded"}, Phase.RUNNING, Result.SUCCEEDED),
        ({"phase": "Succeeded"}, Phase.SUSPENDED, Result.SUCCEEDED),
        ({"phase": "Failed", "restartCount": 3}, Phase.RUNNING, Result.FAILED),
        ({"phase": "Failed", "restartCount": 2}, Phase.RUNNING, None),
        ({"phase": "Failed", "restartCount": 3}, Phase.STOPPING, None),
        ({"phase": "Failed", "restartCount": 3}, Phase.SUSPENDED, None),
        ({"phase": "Suspended"}, Phase.SUSPENDED, None),
    ],
)
def test_a_failure_is_the_end_unless_it_was_ordered_or_is_made_good(
    status: dict[str, Any], phase: Phase, result: Result | None
) -> None:
    known = in_phase(taken(running()), phase)
    assert taken(state(job(status=status), []), known).observed.result is result


def test_a_failure_without_a_restart_policy_is_the_end() -> None:
    asked = {**spec(), "restartPolicy": "Never"}
    seen = state(job(status={"phase": "Failed"}, asked=asked), [])
    assert taken(seen, taken(running(asked=asked))).observed.result is Result.FAILED


def test_a_launcher_that_has_succeeded_is_believed_at_once() -> None:
    """A job that has succeeded must not be suspended while its operator has not heard of it."""
    seen = state(running().job, [pod("launcher", phase="Succeeded", code=0)])
    assert taken(seen, in_phase(taken(running()), Phase.STOPPING)).observed.result is Result.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "decided", "ended"),
    [("timeout", Phase.TIMED_OUT, Result.TIMED_OUT), ("stopped", Phase.FINISHED, Result.TERMINATED)],
)
def test_a_job_that_was_ended_here_is_over(status: str, decided: Phase, ended: Result) -> None:
    """It waited for too long, or a person has stopped it; a failure of its pods meanwhile is not the job's."""
    marks = {f"{PREFIX}job-suspended": "true", f"{PREFIX}job-status": status}
    marked = {**OPTED_IN, **marks, f"{PREFIX}suspended-by": "elastic-job-supervisor"}
    known = in_phase(taken(running()), decided)
    for phase, result in ((JobPhase.CREATED, None), (JobPhase.SUSPENDED, ended), (JobPhase.FAILED, ended)):
        seen = state(job(status={"phase": phase}, annotations=marked), [])
        assert taken(seen, known).observed.result is result


def test_a_person_may_resume_a_job_that_timed_out() -> None:
    """It is taken up as a new one, whatever is left of the marks on it."""
    marked = state(job(status={"phase": "Suspended"}, annotations=_TIMED_OUT), [])
    over = taken(marked, in_phase(taken(running()), Phase.TIMED_OUT))
    left = {name: value for name, value in _TIMED_OUT.items() if name != f"{PREFIX}job-suspended"}
    freed = state(job(status={"phase": "Suspended"}, annotations=left), [])
    assert TRAININGJOB.observe(freed, over, NOW) is None
    assert taken(freed).decision.phase is Phase.SUSPENDED


@pytest.mark.parametrize(
    ("command", "size", "least"),
    [
        (COMMAND, None, 2),
        ("horovodrun -np $workers python train.py", None, 2),
        ("horovodrun --num-proc $(( ${workers} * 1 )) python train.py", None, 2),
        ("horovodrun -np 8 --min-np $((${workers}*1)) python train.py", None, 8),
        ("horovodrun --min-np ${workers} --max-np ${workers} -np 8 python train.py", None, 8),
        ("horovodrun -np $workersTotal python train.py", None, 8),
        (COMMAND, 16, 8),
    ],
)
def test_a_smaller_start_takes_a_command_that_computes_its_size(command: str, size: int | None, least: int) -> None:
    """From the number of workers that it is told; otherwise it waits for as many processes as are written into it."""
    value = taken(state(job(asked=spec(command=command, size=size)), []))
    assert value.spec.start_workers == least


def test_a_job_that_was_resumed_smaller_still_asks_for_what_it_asked_for() -> None:
    value = taken(running(5, asked=spec(5), annotations={**OPTED_IN, f"{PREFIX}requested-workers": "8"}))
    assert (value.spec.requested_workers, value.spec.min_workers, value.spec.start_workers) == (8, 2, 2)


@pytest.mark.parametrize(("text", "seconds"), [("600", 600), ("0", 0), ("soon", 0), ("-5", 0), ("9" * 30, 0)])
def test_the_longest_wait_is_a_number_of_seconds(text: str, seconds: float) -> None:
    value = taken(state(job(annotations={**OPTED_IN, f"{PREFIX}max-wait-time": text}), []))
    assert value.spec.max_wait_seconds == seconds


def test_what_a_job_wants_on_a_loss_is_an_annotation() -> None:
    """Of the job or of a template; what is not understood is said, and the job is supervised without it."""
    asked = taken(state(job(annotations={**OPTED_IN, f"{PREFIX}on-loss": "hold"}), [])).spec
    assert (asked.on_loss, asked.worker_multiple, asked.ignored) == (OnLoss.HOLD, 1, ())
    asked = taken(state(job(annotations={**OPTED_IN, f"{PREFIX}worker-multiple": "3"}), [])).spec
    assert (asked.worker_multiple, len(asked.ignored)) == (1, 1)


def test_bounds_come_from_the_environment_where_the_spec_has_none() -> None:
    """As Arena writes them in both places; without either the job is not elastic."""
    asked = spec(minReplicas=None, maxReplicas=None)
    value = taken(state(job(asked=asked), []))
    assert (value.spec.min_workers, value.spec.max_workers) == (2, 128)
    for role in ("worker", "launcher"):
        asked["etReplicaSpecs"][role]["template"]["spec"]["containers"][0]["env"] = []
    value = taken(state(job(asked=asked), []))
    assert (value.spec.min_workers, value.spec.max_workers) == (8, 8)


def test_an_earlier_job_of_the_name_is_not_gone_on_with() -> None:
    known = replace(taken(running()), uid="earlier")
    value = taken(running(), known)
    assert (value.uid, value.observed.run) == ("job-uid", 1)
