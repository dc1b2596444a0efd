"""The numbers that decisions depend on."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to wait for what; all in seconds. The defaults suit a poll interval of 1 s and a lead of minutes."""

    window_seconds: Annotated[
        float,
        Meta(ge=0, description="Collects a group of notices into one change of the host list: 1.25 poll intervals."),
    ] = 1.25
    margin_seconds: Annotated[
        float, Meta(ge=0, description="Kept free before a deadline: the last moment to tell a worker to go.")
    ] = 5.0
    leave_margin_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="Before its deadline, a worker that the launcher has not let go yet is told to leave. Small: "
            "leaving before the launcher has acted on the shorter list breaks the others' collectives.",
        ),
    ] = 2.0
    lost_grace_seconds: Annotated[
        float, Meta(ge=0, description="Below the minimum without a notice for this long means STOP.")
    ] = 30.0
    launcher_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="A cluster's job whose launcher is gone without a notice is suspended and resumed unless its "
            "operator has acted within this long: it starts a failed launcher again within two seconds.",
        ),
    ] = 5.0
    rank_zero_grace_seconds: Annotated[
        float, Meta(ge=0, description="A STOP goes to everybody when nobody has been rank 0 for this long.")
    ] = 5.0
    rank_zero_head_start_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="A STOP reaches the others at least this long after rank 0: one that leaves first leaves it "
            "waiting in a collective, where it never asks again.",
        ),
    ] = 1.0
    stop_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Suspends without an acknowledgement where no deadline is known.")
    ] = 300.0
    resume_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="Lets more capacity arrive before a start below the requested size, or a growth; lets a "
            "cluster's scheduler bind the pods that wait already before a job resumes.",
        ),
    ] = 2.0
    resume_timeout_seconds: Annotated[
        float, Meta(gt=0, description="A resume that has not started by then is given up and tried again later.")
    ] = 120.0
    resume_backoff_seconds: Annotated[
        float, Meta(ge=0, description="First pause after a resume that failed; doubles up to 32 times as long.")
    ] = 5.0
    probe_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="A cluster's job that waits for this long without room on any node is resumed nevertheless, as "
            "some capacity only appears for pending pods; for RESUME_TIMEOUT_SECONDS, then later and later. 0: never.",
        ),
    ] = 300.0
    growth_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="A cluster's job that was resumed smaller grows while it runs once room that no job waits for "
            "has lasted this long, as each growth pauses all its processes; twice as long after a growth that failed, "
            "then four times, up to 32 times. 0: never.",
        ),
    ] = 30.0
    default_lead_seconds: Annotated[
        float,
        Meta(
            gt=0, description="Stands in where a source neither names a time nor has a usual lead: five minutes on ECS."
        ),
    ] = 300.0
    gone_grace_seconds: Annotated[
        float, Meta(ge=0, description="After the deadline, a silent agent for this long means that the node is gone.")
    ] = 5.0
    expire_seconds: Annotated[
        float, Meta(gt=0, description="A subject that lives this long after its deadline was not reclaimed.")
    ] = 300.0
