"""Decides which elastic agents of a torchrun job train together. Pure.

A round lasts until its members or the job's hosts change. If all ranks can, they first agree on a step, save after it
and hold outside any collective; only then is the next round decided, so that nothing breaks and no step is repeated.
If a member is lost, or time is up, the next round is decided at once; a checkpoint that rank 0 is writing is awaited.

Processes that can enter a round without a restart do so. A new member then starts its own processes first, and joins
when those are ready, also while others leave. After a loss, those that are left first go on without others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.decide.agreement import NoAgreement, committed, negotiated, with_agreement
from supervisor.decide.grant import usable_workers
from supervisor.decide.joining import gathered, join_now, without_gathering
from supervisor.decide.rank_order import RankedHost, next_order
from supervisor.decide.situation import RETURN_SECONDS, Member, Situation
from supervisor.decide.stopping import awaited_until
from supervisor.domain.agreement import MEMBERSHIP, Agreement, Purpose, Round
from supervisor.domain.ids import Host, Instant
from supervisor.domain.job import Decision

Candidates = Sequence[tuple[Host, Member]]
"""Members and their hosts: those that stay in the order of their ranks, then those that join by name."""

READY_SECONDS = 20.0
"""Processes that have not entered a round in process after this time are restarted. Until then it does not change
because of others that come or go: those that are on their way into it could not enter another one."""

_UNREACHABLE_SECONDS = 2.0
"""The shortest time between two rounds of which a member cannot reach the store."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """The members of the next round, whose order is decided with it; none while there are too few."""

    members: Candidates
    in_process: bool = False

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(host for host, _ in self.members)


def with_round(s: Situation, decision: Decision) -> Decision:
    """Returns the decision with the next round, or with the next stage of the agreement that precedes it."""
    if not s.facts.members or s.facts.members.have_ended:
        return decision
    present = _present(s, decision)
    if present is None:
        return _formed(s, decision)
    decision = replace(decision, round=replace(present, starting=_starting(s, decision, present)))
    ranks, agreement = s.facts.ranks, committed(s, *MEMBERSHIP)
    if _is_broken(s, present):
        if agreement is not None and ranks.is_saving_alone(agreement):
            # Another round would interrupt rank 0 while it saves for the next one.
            is_due = s.reached(_hold_until(s, agreement, present))
            return _next(s, decision, _change(s, decision, present)) if is_due else decision
        return _next(s, decision, _change(s, decision, present))
    if _misses(s, present):
        return decision
    if agreement is not None:
        is_due = ranks.have_held(agreement) or s.reached(_hold_until(s, agreement, present))
        return _next(s, decision, _change(s, decision, present)) if is_due else decision
    change = _change(s, decision, present)
    if not change.members or change.hosts == present.hosts or _is_being_entered(s, present):
        return _without_agreement(without_gathering(decision, present.run))
    waiting, workers = _waiting(s, present, change), len(present.hosts)
    if waiting and not join_now(s, decision, workers, waiting, in_process=change.in_process):
        decision = _without_agreement(decision)
        return decision if change.in_process else gathered(s, decision, workers, waiting)
    return _agreed(s, decision, present, change)


def _waiting(s: Situation, present: Round, change: MemberChange) -> Mapping[Host, Instant]:
    """The hosts that a change would only add, and since when they wait; none if it has another reason."""
    if not s.policy.weigh_joins or not set(present.hosts) <= set(change.hosts):
        return {}
    members = s.facts.members.by_host
    return {host: max(members[host].since, present.since) for host in change.hosts if host not in present.hosts}


def _agreed(s: Situation, decision: Decision, present: Round, change: MemberChange) -> Decision:
    """Returns the decision to change the members, after the ranks have agreed on a step if they can."""
    last = _last_moment(s, present)
    if last is not None and s.reached(last):
        return _next(s, decision, change)
    if not s.reached(awaited_until(s)):
        return decision  # This supervisor was started just now: the ranks may be in a collective.
    purpose = Purpose.REGROUP if change.in_process else Purpose.RENDEZVOUS
    if not s.facts.ranks.agree_to(purpose):
        return _next(s, decision, change)
    outcome = negotiated(s, purpose)
    if isinstance(outcome, NoAgreement):
        return _next(s, decision, change)
    if purpose is Purpose.REGROUP and outcome.following is None:
        outcome = replace(outcome, following=_following(s, present, change))
    return with_agreement(decision, outcome)


def _present(s: Situation, decision: Decision) -> Round | None:
    """Returns the present round: the last one that a supervisor decided or that the members formed without it."""
    run, members = s.job.observed.run, s.facts.members.by_host
    decided = decision.round if decision.round is not None and decision.round.run == run else None
    rounds = (each.known for each in members.values() if each.known is not None)
    known = max(rounds, key=lambda each: each.number, default=None)
    if known is None or (decided is not None and known.number <= decided.number):
        return decided
    return Round(
        number=known.number,
        run=run,
        members=tuple(members[host].member if host in members else "" for host in known.hosts),
        hosts=known.hosts,
        in_process=known.in_process,
        since=round(s.now, 6),
    )


def _formed(s: Situation, decision: Decision) -> Decision:
    """Returns the first round of a run: at once if all hosts have a waiting member, otherwise after a delay."""
    waiting = [(host, each) for host, each in _outside(s, decision, ()) if each.waits]
    change = MemberChange(_sized(s, waiting))
    is_complete = {host for host, _ in waiting} == decision.hosts - decision.exclusions
    if not is_complete and not change.members:
        return decision
    if not is_complete and not s.reached(max(each.since for _, each in waiting) + s.policy.resume_delay_seconds):
        return decision
    return _next(s, decision, change)


def _next(s: Situation, decision: Decision, change: MemberChange) -> Decision:
    """Returns the decision with the next round, or without a round while too few members are left."""
    if not change.members:
        return _without_agreement(decision)
    following = _following(s, decision.round, change)
    decision = without_gathering(_without_agreement(decision, committed=True), following.run)
    return replace(decision, round=following)


def _following(s: Situation, present: Round | None, change: MemberChange) -> Round:
    ordered = _ordered(s, present, change)
    return Round(
        number=1 if present is None else present.number + 1,
        run=s.job.observed.run,
        members=tuple(each.member for _, each in ordered),
        hosts=tuple(host for host, _ in ordered),
        in_process=change.in_process,
        # Their agents would end processes that still start, which may take longer than until the next change.
        starting=() if present is None else tuple(host for host in present.starting if host not in change.hosts),
        since=round(s.now, 6),
    )


def _ordered(s: Situation, present: Round | None, change: MemberChange) -> Candidates:
    """Returns the members of the next round in the order of their ranks.

    Where no process is restarted, each may have a part of the state, and the order decides how much of it moves. If the
    member of a host is lost, its part is, too, and all go back to a checkpoint.
    """
    known, members = s.facts.members.by_host, dict(change.members)
    if present is None or not change.in_process or not known.keys() >= set(present.hosts):
        return change.members
    before = [RankedHost(host, known[host].processes) for host in present.hosts]
    order = next_order(before, [RankedHost(host, each.processes) for host, each in change.members])
    return [(host, members[host]) for host in order]


def _without_agreement(decision: Decision, *, committed: bool = False) -> Decision:
    """Returns the decision without an agreement on the next round, unless that agreement is committed."""
    held = decision.agreement
    is_dropped = held is not None and held.purpose in MEMBERSHIP and (committed or not held.committed)
    return replace(decision, agreement=None) if is_dropped else decision


def _change(s: Situation, decision: Decision, present: Round) -> MemberChange:
    """Returns the next round. It needs no restart if the members that start and leave allow that."""
    allowed, members = decision.hosts - decision.exclusions, s.facts.members.by_host
    staying = [(host, members[host]) for host in present.hosts if host in allowed and host in members]
    outside = _outside(s, decision, present.hosts)
    if _regroups(s, present):
        unhurt = [(h, each) for h, each in staying if each.member in present.members and not _has_failed(each, present)]
        joining = [(host, each) for host, each in outside if each.started] if _is_intact(s, present) else []
        regrouped = _sized(s, [*unhurt, *joining])
        if regrouped:
            return MemberChange(regrouped, in_process=True)
    joining = [(host, each) for host, each in outside if each.waits or each.started]
    return MemberChange(_sized(s, [*staying, *joining]))


def _starting(s: Situation, decision: Decision, present: Round) -> tuple[Host, ...]:
    """The hosts whose members start their processes now; these join the processes that are not restarted."""
    if not _regroups(s, present):
        return ()
    found = set[Host]()
    for host in decision.hosts - decision.exclusions:
        member = s.facts.members.by_host.get(host)
        if member is None or (host in present.hosts and not _has_failed(member, present)):
            continue
        # A member that has already started stays in: a different answer would make it end its processes.
        if member.waits or member.started or host in present.starting:
            found.add(host)
    return tuple(sorted(found))


def _sized(s: Situation, candidates: Candidates) -> Candidates:
    """Returns the first candidates, as many as the job can use."""
    return candidates[: usable_workers(len(candidates), s.job.spec)]


def _outside(s: Situation, decision: Decision, present: Iterable[Host]) -> Candidates:
    """The members on hosts that the job may use and the round does not."""
    allowed, members = (decision.hosts - decision.exclusions).difference(present), s.facts.members.by_host
    return [(host, members[host]) for host in sorted(allowed) if host in members]


def _is_broken(s: Situation, present: Round) -> bool:
    """Whether the members of a round cannot go on together.

    One is lost, has failed, cannot reach the store, or has not entered the round without a restart.
    """
    found = [each for host in present.hosts if (each := s.facts.members.by_host.get(host)) is not None]
    if any(_has_failed(each, present) for each in found):
        return True
    if any(each.unreachable == present.number for each in found):
        return s.reached(present.since + _UNREACHABLE_SECONDS)
    if _has_not_been_entered(s, present):
        return True
    # A missing member counts as lost only after a while: this supervisor may have been started just now.
    return _misses(s, present) and s.reached(s.facts.since + RETURN_SECONDS)


def _misses(s: Situation, present: Round) -> bool:
    """Whether a member is not connected, or another member is connected on its host."""
    found = [s.facts.members.by_host.get(host) for host in present.hosts]
    return any(each is None or each.member != name for name, each in zip(present.members, found, strict=True))


def _is_intact(s: Situation, present: Round) -> bool:
    """Whether all members of the round are there and train, also those that are about to leave it."""
    members = s.facts.members.by_host
    return not _misses(s, present) and not any(_has_failed(members[host], present) for host in present.hosts)


def _has_failed(member: Member, present: Round) -> bool:
    return member.failed and member.round == present.number


def _regroups(s: Situation, present: Round) -> bool:
    """Whether the processes enter the next round without a restart; not if they have just failed to."""
    can = s.facts.ranks.agree_to(Purpose.REGROUP) or _is_being_entered(s, present)
    return can and not _has_not_been_entered(s, present)


def _is_being_entered(s: Situation, present: Round) -> bool:
    """Whether processes are still on their way into a round without a restart; those that join it agree to nothing yet.

    Not when a host of the round is about to go.
    """
    if not present.in_process:
        return False
    found = [s.facts.members.by_host.get(host) for host in present.hosts]
    are_ready = all(each is not None and each.ready >= present.number for each in found)
    if are_ready and s.facts.ranks.agree_to(Purpose.REGROUP):
        return False
    last = _last_moment(s, present)
    return not s.reached(present.since + READY_SECONDS) and (last is None or not s.reached(last))


def _has_not_been_entered(s: Situation, present: Round) -> bool:
    """Whether processes that were to enter a round without a restart have not done so in time.

    A member that is missing may have entered it, and been lost since.
    """
    found = [each for host in present.hosts if (each := s.facts.members.by_host.get(host)) is not None]
    late = [each for each in found if each.member in present.members and each.ready < present.number]
    return present.in_process and bool(late) and s.reached(present.since + READY_SECONDS)


def _hold_until(s: Situation, agreement: Agreement, present: Round) -> float:
    """Until when the supervisor waits for the ranks after their step was committed.

    Their answers are lost with the supervisor that received them: another one waits no longer than it takes to agree.
    """
    end, last = agreement.since + s.policy.stop_timeout_seconds, _last_moment(s, present)
    if s.facts.since > agreement.since:
        end = min(end, s.facts.since + s.policy.agreement_timeout_seconds)
    return end if last is None else min(end, last)


def _last_moment(s: Situation, present: Round) -> float | None:
    """When the members change in any case, because the first host of the round is about to go."""
    deadline = s.deadline(frozenset(present.hosts))
    return None if deadline is None else deadline - s.policy.leave_margin_seconds
