"""How much priority a job gets in its queue, by the work that a preemption would cost it now. Pure."""

from dataclasses import dataclass, replace

from supervisor.fanout.saves import Save


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostPolicy:
    """The bounds of boosts.

    Attributes:
        maximum: The largest boost; 0 means that there are none.
        step_seconds: So much work that would be lost is one point.
        hold_seconds: A boost changes at most once in this time.
        margin_seconds: What of a pod's grace is not reckoned with for a checkpoint.
    """

    maximum: int
    step_seconds: float
    hold_seconds: float
    margin_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What decides how much a running job would lose.

    Attributes:
        run: The number of its run.
        save: Its last checkpoint; None if none is known.
        grace: The shortest grace of its pods, in seconds.
        attended: Whether rank 0 is connected, so that it can be told to save.
    """

    run: int
    save: Save | None
    grace: float
    attended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Boost:
    """The boost of a job's Workload.

    `run` is the present run, `began` when its work began to count (Unix seconds), and `changed_at` when `value` was
    last changed.
    """

    run: int
    began: float
    value: int
    changed_at: float


def first_boost(written: int, exposure: Exposure, policy: BoostPolicy, now: float) -> Boost:
    """The boost of a Workload that this supervisor sees for the first time, with the boost that is written in it.

    An earlier leader has counted so many steps of work, so that nothing changes because another one leads.
    """
    began = now - written * policy.step_seconds
    return Boost(run=exposure.run, began=began, value=written, changed_at=now)


def next_boost(before: Boost, exposure: Exposure, policy: BoostPolicy, now: float) -> Boost:
    """The boost after a look at the job."""
    known = before if exposure.run == before.run else replace(before, run=exposure.run, began=now)
    value = _value(unsaved_seconds(known.began, exposure, policy, now), policy)
    if value == known.value or now < known.changed_at + policy.hold_seconds:
        return known
    return replace(known, value=value, changed_at=now)


def unsaved_seconds(began: float, exposure: Exposure, policy: BoostPolicy, now: float) -> float:
    """The work that a preemption would cost a run whose work counts since `began`.

    It is 0 if the job can save within the grace of its pods, by the time that its last checkpoint took.
    """
    if _saves_in_grace(exposure, policy):
        return 0.0
    save = exposure.save
    saved_at = save.at if save is not None and save.run == exposure.run else began
    return max(0.0, now - max(began, saved_at))


def _saves_in_grace(exposure: Exposure, policy: BoostPolicy) -> bool:
    seconds = None if exposure.save is None else exposure.save.seconds
    if seconds is None or not exposure.attended:
        return False
    return seconds + policy.margin_seconds <= exposure.grace


def _value(unsaved: float, policy: BoostPolicy) -> int:
    return min(policy.maximum, int(unsaved // policy.step_seconds))
