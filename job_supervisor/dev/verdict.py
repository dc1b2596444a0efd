"""What a drill has shown. Pure."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from supervisor.observability.views import AcknowledgementView


class Progress(msgspec.Struct, frozen=True):
    """A run of the sample job, as its launcher writes it after every step.

    `first_step` is the step of the checkpoint that it loaded, `step` the last step that it finished.
    """

    first_step: int
    step: int
    loss: float
    hosts: list[str]


def progress(directory: Path, run: int) -> Progress | None:
    """Reads the progress of a run; None before its first step."""
    try:
        return msgspec.json.decode((directory / f"run-{run}.json").read_bytes(), type=Progress)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it holds."""

    claim: str
    holds: bool


def shrunk(excluded: str, run: int) -> Check:
    """One host was reclaimed, the others had to go on."""
    return Check(f"training continued without {excluded}, and was not restarted (run {run})", run == 1)


def stopped(answer: AcknowledgementView | None, last: Progress) -> list[Check]:
    """Too few hosts were left: rank 0 had to save the last step."""
    saved = None if answer is None or answer.kind != "saved" else answer.step
    if saved is None:
        return [Check("rank 0 did not say that it saved a checkpoint", holds=False)]
    return [
        Check(f"rank 0 saved a checkpoint when it was told to, at step {saved}", holds=True),
        Check(f"{last.step - saved} steps were lost: {last.step} were trained, {saved} saved", last.step == saved),
    ]


def resumed(last: Progress, again: Progress, hosts: list[str]) -> list[Check]:
    """The hosts are back: the job had to go on where it was stopped, on all of them."""
    return [
        Check(f"the next run resumed at step {again.first_step} of {last.step}", again.first_step == last.step),
        Check(f"{len(again.hosts)} of {len(hosts)} hosts train again", sorted(again.hosts) == sorted(hosts)),
    ]
