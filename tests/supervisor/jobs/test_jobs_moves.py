"""Jobs that a hub of many clusters moves: what their objects say of it, and what is stored."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from supervisor.domain.ids import cluster_job
from supervisor.domain.job import Capability, HubMarks, Phase, SupervisedJob
from supervisor.jobs.kind import JobState
from supervisor.jobs.marks import read_marks, write_marks
from supervisor.jobs.registry import KINDS
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.jobs.every_kind import BY_NAME, OPTED_IN, PREFIX, SIZED, spec_of
from tests.supervisor.jobs.hub_member import HubMember
from tests.supervisor.jobs.pytorchjob.pytorchjob_objects import pod

MOVING = {**OPTED_IN, f"{PREFIX}max-wait-time": "600", f"{PREFIX}on-timeout": "move"}
OF_HUB = {"karmada.io/managed": "true"}
LABEL = f"{PREFIX}last-checkpoint"


def observed(
    annotations: Mapping[str, str] = MOVING,
    labels: Mapping[str, str] = OF_HUB,
    *,
    kind: str = "pytorchjob",
    known: SupervisedJob | None = None,
) -> SupervisedJob:
    how = BY_NAME[kind]
    metadata = {"name": "bert", "namespace": "team", "uid": "job-uid", "resourceVersion": "7"}
    read = {"metadata": {**metadata, "annotations": annotations, "labels": labels}, "spec": spec_of(kind, 3)}
    state = JobState.of(how, cluster_job("team", kind, "bert"), how.decode(msgspec.json.encode(read)), [])
    value = how.observe(state, known, T0)
    assert value is not None
    return value


@pytest.mark.parametrize("kind", SIZED)
def test_a_job_of_a_hub_can_be_moved_if_it_asks_for_that(kind: str) -> None:
    job = observed(kind=kind)
    assert job.spec.can(Capability.MOVES)
    assert (job.spec.ignored, job.observed.hub) == ((), HubMarks())
    assert not observed({**MOVING, f"{PREFIX}on-timeout": "end"}, kind=kind).spec.can(Capability.MOVES)
    assert not observed(OPTED_IN, kind=kind).spec.can(Capability.MOVES)


@pytest.mark.parametrize(
    ("annotations", "labels", "moves", "why"),
    [
        (MOVING, {}, False, "no hub of many clusters has made the job, so none can move it."),
        ({**OPTED_IN, f"{PREFIX}on-timeout": "move"}, OF_HUB, True, "the job has no max-wait-time, so it waits here"),
        ({**MOVING, f"{PREFIX}on-timeout": "Move"}, OF_HUB, False, "'Move' is neither end nor move."),
    ],
)
def test_a_request_that_does_nothing_is_said(
    annotations: Mapping[str, str], labels: Mapping[str, str], why: str, *, moves: bool
) -> None:
    job = observed(annotations, labels)
    assert job.spec.can(Capability.MOVES) is moves
    assert why in " ".join(job.spec.ignored)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize(
    ("labels", "step"),
    [
        ({**OF_HUB, LABEL: "1200"}, "1200"),
        ({**OF_HUB, LABEL: "none"}, "none"),
        ({LABEL: "1200"}, None),
        (OF_HUB, None),
    ],
)
def test_the_step_of_a_moved_job_is_in_a_label(kind: str, labels: Mapping[str, str], step: str | None) -> None:
    """A label that no hub has written means nothing."""
    metadata = {"name": "bert", "namespace": "team", "uid": "job-uid", "resourceVersion": "7", "labels": labels}
    assert BY_NAME[kind].decode(msgspec.json.encode({"metadata": metadata})).moved_with == step


@pytest.mark.parametrize(
    ("label", "step", "says"),
    [
        ("1200", 1200, "Its hub has moved the job here; it resumes from the checkpoint of step 1200."),
        ("0", 0, "it resumes from the checkpoint of step 0."),
        ("none", None, "Its hub has moved the job here; its checkpoint is not known."),
        ("9" * 63, None, "its checkpoint is not known."),
    ],
)
def test_a_moved_job_says_from_which_step_it_resumes(label: str, step: int | None, says: str) -> None:
    job = observed(labels={**OF_HUB, LABEL: label})
    assert (job.decision.phase, job.decision.resumes_from) == (Phase.WAITING, step)
    assert job.decision.reason.endswith(says)
    assert job.observed.hub == HubMarks(moved=True)


@pytest.mark.parametrize(
    ("annotations", "marks", "step"),
    [
        ({LABEL: "1200"}, HubMarks(checkpoint="1200"), 1200),
        ({LABEL: "none"}, HubMarks(checkpoint="none"), None),
        ({LABEL: "twelve"}, HubMarks(), None),
        ({f"{PREFIX}no-capacity": "true"}, HubMarks(given_up=True), None),
        ({f"{PREFIX}no-capacity": "yes"}, HubMarks(), None),
    ],
)
def test_what_the_object_tells_its_hub_is_stored(
    annotations: Mapping[str, str], marks: HubMarks, step: int | None
) -> None:
    """Of a job that is known as of one that is not; its step counts only in the first decision."""
    first = observed({**MOVING, **annotations})
    assert (first.observed.hub, first.decision.resumes_from) == (marks, step)
    later = observed({**MOVING, **annotations}, known=observed())
    assert (later.observed.hub, later.decision.resumes_from) == (marks, None)
    assert observed({**MOVING, **annotations}, {}).observed.hub is None


@pytest.mark.parametrize("kind", SIZED)
async def test_the_marks_are_written_in_one_request_that_a_hub_leaves_alone(kind: str) -> None:
    """And are read as they were written; taking them off leaves the checkpoint."""
    member = HubMember(BY_NAME[kind], spec_of(kind, 3), MOVING)
    for marks in (HubMarks(given_up=True, checkpoint="1200"), HubMarks(checkpoint="1200")):
        before = member.writes
        written = await write_marks(cast("Any", member), member.state, marks)
        assert written is not None
        assert read_marks(written) == marks
        assert (member.writes, member.taken_back) == (before + 1, [])
    assert member.annotations[LABEL] == "1200"
    assert f"{PREFIX}no-capacity" not in member.annotations


@pytest.mark.parametrize(("phase", "is_written"), [("Running", False), ("Pending", False), ("Failed", True)])
async def test_a_job_is_not_given_up_while_it_has_pods(phase: str, *, is_written: bool) -> None:
    """The hub does not wait for them. Those that have ended are kept for their logs."""
    member = HubMember(BY_NAME["pytorchjob"], spec_of("pytorchjob", 3), MOVING)
    state = replace(member.state, pods=[pod("worker-0", phase=phase)])
    assert await write_marks(cast("Any", member), state, HubMarks(checkpoint="1200")) is not None
    written = await write_marks(cast("Any", member), state, HubMarks(given_up=True, checkpoint="1200"))
    assert (written is not None) is is_written
    assert (f"{PREFIX}no-capacity" in member.annotations) is is_written
