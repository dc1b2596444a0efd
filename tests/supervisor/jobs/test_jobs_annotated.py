"""The annotations that say what a job wants when it loses workers."""

from dataclasses import replace

import pytest

from servicekit.bounds import DURATION_FORM
from supervisor.cluster.annotations import ON_LOSS, PREFIX, WORKER_MULTIPLE
from supervisor.domain.job import OnLoss
from supervisor.jobs.annotated import with_annotations
from tests.supervisor.decide.decide_builders import spec

ASKED = spec(2, 8, requested=6)


@pytest.mark.parametrize(
    ("annotations", "on_loss", "multiple"),
    [
        ({}, OnLoss.SHRINK, 1),
        ({ON_LOSS: "shrink", WORKER_MULTIPLE: "1"}, OnLoss.SHRINK, 1),
        ({ON_LOSS: "hold"}, OnLoss.HOLD, 1),
        ({WORKER_MULTIPLE: "3"}, OnLoss.SHRINK, 3),
        ({ON_LOSS: "hold", WORKER_MULTIPLE: "2"}, OnLoss.HOLD, 2),
    ],
)
def test_a_job_gets_what_it_asks_for(annotations: dict[str, str], on_loss: OnLoss, multiple: int) -> None:
    read = with_annotations(ASKED, [{}, annotations])
    assert read == replace(ASKED, on_loss=on_loss, worker_multiple=multiple)


def test_the_annotation_of_the_job_itself_counts_more_than_that_of_a_template() -> None:
    assert with_annotations(ASKED, [{ON_LOSS: "shrink"}, {ON_LOSS: "hold"}]).on_loss is OnLoss.SHRINK


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (ON_LOSS, "wait", "The annotation on-loss is ignored: 'wait' is neither shrink nor hold."),
        (ON_LOSS, "", "The annotation on-loss is ignored: '' is neither shrink nor hold."),
        (
            WORKER_MULTIPLE,
            "two\n",
            "The annotation worker-multiple is ignored: 'two ' is not a whole number of at least 1.",
        ),
        (
            WORKER_MULTIPLE,
            "0",
            "The annotation worker-multiple is ignored: '0' is not a whole number of at least 1.",
        ),
        (
            WORKER_MULTIPLE,
            "4",
            "The annotation worker-multiple is ignored: '4' does not divide the 6 requested workers.",
        ),
    ],
)
def test_what_is_not_understood_is_left_out_and_said(name: str, value: str, why: str) -> None:
    assert with_annotations(ASKED, [{name: value}]) == replace(ASKED, ignored=(why,))


def test_a_long_value_is_cut() -> None:
    """The definition of the resource bounds the sentence."""
    (why,) = with_annotations(ASKED, [{ON_LOSS: "x" * 100_000}]).ignored
    assert len(why) < 512


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "max-wait-time",
            "soon",
            f"'soon' is not {DURATION_FORM}; the job may wait for ever.",
        ),
        ("min-workers", "two", "'two' is not a whole number from 1 to 100,000; the job needs all its workers."),
        ("max-workers", "9" * 9, "'999999999' is not a whole number from 1 to 100,000; the job never grows."),
        (
            "managed-by-job-supervisor",
            "True",
            "'True' is neither true nor false, so it does not opt in.",
        ),
        ("spot-instance", "yes", "'yes' is neither true nor false, so it does not opt in."),
        ("max-wait-tim", "600", "there is none of this name; perhaps max-wait-time is meant."),
        ("min-worker", "2", "there is none of this name; perhaps min-workers is meant."),
        ("colour", "red", "there is none of this name."),
    ],
)
def test_a_typing_error_that_costs_protection_is_said(name: str, value: str, why: str) -> None:
    """On the job, or on one of its templates; a copy of it is said once."""
    mistyped = {f"{PREFIX}{name}": value}
    for objects in ([mistyped], [{}, mistyped], [mistyped, mistyped]):
        read = with_annotations(ASKED, objects)
        assert read.ignored == (f"The annotation {name} is ignored: {why}",)
        assert read.max_wait_seconds == 0


@pytest.mark.parametrize(("text", "seconds"), [("600", 600.0), ("10m", 600.0), ("2h", 7200.0), ("0", 0.0)])
def test_the_longest_wait_may_have_a_unit(text: str, seconds: float) -> None:
    """People write 10m, as elsewhere in Kubernetes."""
    read = with_annotations(ASKED, [{f"{PREFIX}max-wait-time": text}])
    assert (read.max_wait_seconds, read.ignored) == (seconds, ())


def test_an_annotation_of_the_jobs_kind_is_known() -> None:
    """Another kind does not read it."""
    objects = [{f"{PREFIX}job-suspended": "true"}]
    assert with_annotations(ASKED, objects, frozenset(objects[0])).ignored == ()
    assert len(with_annotations(ASKED, objects).ignored) == 1


def test_as_many_sentences_are_stored_as_the_definition_takes() -> None:
    """Whoever annotates a job may write thousands of names."""
    many = {f"{PREFIX}{'x' * 200}{number}": "" for number in range(1000)}
    ignored = with_annotations(ASKED, [many]).ignored
    assert len(ignored) <= 16
    assert all(len(why) < 512 for why in ignored)
