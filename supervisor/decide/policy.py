"""The delays and limits that decisions depend on."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

MAX_DOUBLINGS = 5
"""A pause that doubles grows to 32 times the first one."""


def doubled(seconds: float, times: int) -> float:
    """The pause after `times` earlier failures in a row, if the first pause takes `seconds`."""
    return seconds * 2.0 ** min(times, MAX_DOUBLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All delays, in seconds, and the purpose of each. The defaults suit a poll interval of 1 s and a lead of minutes.

    Each has an upper bound, far above what is useful, so that a typing error does not switch off the protection.
    """

    window_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="After the first notice of a group, the supervisor waits this long for further notices, so "
            "that all affected hosts leave the host list in one update. The default is 1.25 poll intervals.",
        ),
    ] = 1.25
    margin_seconds: Annotated[
        float,
        Meta(
            ge=0, le=600, description="Safety margin: workers are told at the latest this long before their deadline."
        ),
    ] = 5.0
    leave_margin_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="A worker that the launcher has not released yet is told to leave this long before its "
            "deadline. Keep it small: leaving before the launcher has shortened its list breaks the collectives of "
            "the other workers.",
        ),
    ] = 2.0
    lost_grace_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="A job that is below its minimum for this long without a notice is stopped."),
    ] = 30.0
    launcher_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="On a cluster: a job whose launcher is gone without a notice is suspended and resumed "
            "unless its operator acts within this time. The operator restarts a failed launcher within two seconds.",
        ),
    ] = 5.0
    rank_zero_grace_seconds: Annotated[
        float, Meta(ge=0, le=600, description="A STOP goes to all processes if none has been rank 0 for this long.")
    ] = 5.0
    rank_zero_head_start_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="A STOP reaches the other ranks at least this long after rank 0. If one of them left "
            "first, rank 0 would wait in a collective and never ask again.",
        ),
    ] = 1.0
    agreement_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="If all ranks of a job stop or save at one step, they have this long to agree on it. After "
            "that rank 0 saves alone, as in jobs whose ranks do not agree.",
        ),
    ] = 10.0
    just_in_time: Annotated[
        bool,
        Meta(
            description="If all ranks of a job stop at one step, and the times of their steps and checkpoints are "
            "known, the job trains until just before the last step from which the checkpoint is still in time. If "
            "it goes on without some hosts, they train until shortly before they go. false: it acts at once."
        ),
    ] = True
    weigh_joins: Annotated[
        bool,
        Meta(
            description="If further hosts join a job only by a restart of all its processes, they join when another "
            "host leaves, or once they have waited for as long, together, as the restart stops the others. In process "
            "they only wait for others that are about to leave. false: at once."
        ),
    ] = True
    stop_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="A STOP without an acknowledgement ends after this time if no deadline is known.",
        ),
    ] = 300.0
    resume_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Delay before a start below the requested size or a growth, so that more capacity can "
            "arrive. On a cluster also before each resume, so that the scheduler can bind pods that already wait.",
        ),
    ] = 2.0
    resume_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="A resume that has not started within this time is given up and tried again later.",
        ),
    ] = 120.0
    resume_backoff_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="First pause after a failed resume, and after a run that was lost without a notice within "
            "RESUME_TIMEOUT_SECONDS of its beginning; it doubles each time, up to 32 times this value.",
        ),
    ] = 5.0
    probe_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="On a cluster: a job that has waited this long without room on any node is resumed "
            "nevertheless, as some capacity only appears for pending pods. The attempt lasts RESUME_TIMEOUT_SECONDS, "
            "and the pauses between attempts grow. 0: never.",
        ),
    ] = 300.0
    move_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="On a cluster with a hub: a job that was given up, so that its hub moves it to another "
            "cluster, waits for capacity in this one again if it is still there after this time. Karmada gives up a "
            "move after ten minutes.",
        ),
    ] = 600.0
    growth_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="On a cluster: a job that was resumed smaller grows once there has been room that no "
            "waiting job needs for this long, as each growth pauses all its processes. The delay doubles after each "
            "failed growth, up to 32 times this value. 0: never.",
        ),
    ] = 30.0
    default_lead_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Lead time of a notice whose source neither names a time nor has a usual lead: five "
            "minutes on ECS.",
        ),
    ] = 300.0
    scheduled_horizon_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="A scheduled notice, such as maintenance, is acted on this long before its deadline, as if it "
            "were a sudden one with this lead. Time for the last step, the stop and the checkpoint; five minutes is "
            "the longest lead that a cloud gives for a sudden reclaim. Processes are asked for a checkpoint twice as "
            "long before the deadline.",
        ),
    ] = 300.0
    scheduled_avoid_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=604800,
            description="No run starts or grows on a node whose scheduled notice ends within this time: a run should "
            "last longer than its start costs.",
        ),
    ] = 3600.0
    checkpoint_pause_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="A hint, or a scheduled notice that comes near, asks for no checkpoint if one was asked for "
            "within this time: hints come in groups.",
        ),
    ] = 60.0
    gone_grace_seconds: Annotated[
        float,
        Meta(
            ge=0, le=3600, description="A node whose agent is silent for this long after the deadline counts as gone."
        ),
    ] = 5.0
    expire_seconds: Annotated[
        float,
        Meta(gt=0, le=86400, description="A subject that still exists this long after its deadline was not reclaimed."),
    ] = 300.0
