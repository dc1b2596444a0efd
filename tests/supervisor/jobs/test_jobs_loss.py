"""The annotations that say what a job wants when it loses workers."""

from dataclasses import replace

import pytest

from supervisor.cluster.annotations import ON_LOSS, WORKER_MULTIPLE
from supervisor.domain.job import OnLoss
from supervisor.jobs.loss import with_loss_policy
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
    read = with_loss_policy(ASKED, [{}, annotations])
    assert read == replace(ASKED, on_loss=on_loss, worker_multiple=multiple)


def test_the_annotation_of_the_job_itself_counts_more_than_that_of_a_template() -> None:
    assert with_loss_policy(ASKED, [{ON_LOSS: "shrink"}, {ON_LOSS: "hold"}]).on_loss is OnLoss.SHRINK


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
    assert with_loss_policy(ASKED, [{name: value}]) == replace(ASKED, ignored=(why,))


def test_a_long_value_is_cut() -> None:
    """The definition of the resource bounds the sentence."""
    (why,) = with_loss_policy(ASKED, [{ON_LOSS: "x" * 100_000}]).ignored
    assert len(why) < 512
