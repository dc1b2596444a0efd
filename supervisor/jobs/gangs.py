"""Says how many hosts of a job its gang needs, and holds the job's spec to it. Pure.

A gang scheduler counts pods, and does not start fewer than the gang's minimum; a job's hosts are its workers.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from supervisor.cluster.gangs import FORMS, GangDemand, PodGroup
from supervisor.domain.job import GangMinimum, Spec
from supervisor.jobs.kind import CommonJobSpec, JobState, Right

RIGHTS = tuple(
    Right(
        group=group,
        resources=("podgroups",),
        verbs=("list", "watch"),
        reason="the fewest pods that a gang scheduler starts of a job",
    )
    for group in dict.fromkeys(form.resource.group for form in FORMS)
)


def gang_minimum(
    state: JobState[Any], asked: CommonJobSpec, known: GangMinimum | None, *, launchers: int
) -> GangMinimum | None:
    """Returns the largest minimum that anything says of the job's gang.

    Args:
        state: The job, its pods and its PodGroups.
        asked: The spec of that job.
        known: The minimum that is stored. It counts while its PodGroup is gone, which a controller deletes with the
            pods of a job that it suspends.
        launchers: The number of pods that the job's controller takes into the gang although they are no hosts.

    Returns:
        None if nothing says one.
    """
    found = list(_of_job(state, asked, launchers))
    for group in state.groups:
        is_known = known is not None and known.group == group.name
        before = known.pods if known is not None and is_known else 0
        found.extend(_of_group(state, asked, group, before, launchers))
    if known is not None and known.group and all(group.name != known.group for group in state.groups if group.least):
        found.append(known)
    return max(found, key=lambda each: each.workers, default=None)


def _of_job(state: JobState[Any], asked: CommonJobSpec, launchers: int) -> Iterator[GangMinimum]:
    """Yields the minimum of a field of the job, and those of its pod templates."""
    if (demand := state.job.gang) is not None:
        yield _minimum(demand, launchers)
    for member in asked.gangs.values():
        if member.demand is not None and (surplus := asked.surplus(member.group)) is not None:
            yield _minimum(member.demand, surplus)


def _of_group(
    state: JobState[Any], asked: CommonJobSpec, group: PodGroup, before: int, launchers: int
) -> Iterator[GangMinimum]:
    """Yields the minimum of a PodGroup.

    Args:
        state: The job.
        asked: Its spec.
        group: The PodGroup.
        before: The number of pods that counted as its minimum when the job was last observed.
        launchers: See `gang_minimum`.
    """
    is_own = state.job.metadata.uid in group.owners
    surplus = asked.surplus(group.name)
    if not group.least or (surplus is None and not is_own):
        return
    minimum = _minimum(group.demand, launchers if is_own or surplus is None else surplus, group.name)
    # Operators without another wish of the job demand all of its pods, and lower that with the job's size. A number
    # that stays although the size has changed is no such default.
    is_default = is_own and not group.fixed and minimum.workers >= asked.replicas and group.least != before
    if not is_default:
        yield minimum


def _minimum(demand: GangDemand, surplus: int, group: str = "") -> GangMinimum:
    return GangMinimum(workers=max(1, demand.pods - surplus), pods=demand.pods, source=demand.source, group=group)


def with_gang(spec: Spec, gang: GangMinimum | None) -> Spec:
    """The spec of which no run has fewer hosts than the gang needs, or than were requested, if those are fewer."""
    if gang is None:
        return spec
    bounded = replace(gang, workers=min(gang.workers, spec.requested_workers))
    start = spec.least_to_start
    return replace(
        spec,
        gang=bounded,
        min_workers=max(spec.min_workers, bounded.workers),
        least_to_start=None if start is None else max(start, bounded.workers),
    )
