"""Which elastic agents of a torchrun job train together. Pure.

A round lasts until its members or the job's hosts change. If all ranks can, they first agree on a step, save after it
and hold outside any collective; only then is the next round decided, so that nothing breaks and no step is repeated.
If a member is lost, or time is up, the next round is decided at once; a checkpoint that rank 0 is writing is awaited.

Processes that can enter a round without a restart do so. A new member then starts its own processes first, and joins
when those are ready. Members never leave and join in one such round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from supervisor.decide.agreement import NoAgreement, negotiated
from supervisor.decide.grant import usable_workers
from supervisor.decide.situation import RETURN_SECONDS, Member, Situation
from supervisor.decide.stopping import awaited_until, with_agreement
from supervisor.domain.agreement import Agreement, Purpose, Round
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision

Candidates = Sequence[tuple[Host, Member]]
"""Members and their hosts in the order of their ranks."""

READY_SECONDS = 20.0
"""Processes that have not entered a round in process after this time are restarted. Until then it does not change
because of others that come or go: those that are on their way into it could not enter another one."""

_MEMBERSHIP = frozenset({Purpose.RENDEZVOUS, Purpose.REGROUP})
"""The purposes of agreements after which the members change."""

_UNREACHABLE_SECONDS = 2.0
"""The shortest time between two rounds of which a member cannot reach the store."""


@dataclass(frozen=True, slots=True)
class _Change:
    """The members of the next round; none while there are too few."""

    members: Candidates
    in_process: bool = False

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(host for host, _ in self.members)

    @property
    def purpose(self) -> Purpose:
        """The purpose of the agreement that comes before the change."""
        return Purpose.REGROUP if self.in_process else Purpose.RENDEZVOUS


def with_round(s: Situation, decision: Decision) -> Decision:
    """The decision with the next round, or with the next stage of the agreement that comes before it."""
    if not s.facts.members or s.facts.members.have_ended:
        return decision
    held = _held(s, decision)
    if held is None:
        return _formed(s, decision)
    decision = replace(decision, round=replace(held, starting=_starting(s, decision, held)))
    if is_broken(s, held):
        return decision if _is_saving(s, held) else _next(s, decision, held)
    return decision if _misses(s, held) else _changed(s, decision, held)


def _changed(s: Situation, decision: Decision, held: Round) -> Decision:
    """The decision about a round whose members are all there."""
    agreement = committed(s)
    if agreement is not None:
        is_due = s.facts.ranks.have_held(agreement) or s.now >= _hold_until(s, agreement, held)
        return _next(s, decision, held) if is_due else decision
    change = _change(s, decision, held)
    if not change.members or change.hosts == held.hosts or _is_being_entered(s, held):
        return _without_agreement(decision)
    return _agreed(s, decision, held, change)


def changes_members(s: Situation, decision: Decision) -> bool:
    """Whether the ranks are on the way to another round: another agreement would have to wait for that."""
    agreement = decision.agreement
    return bool(s.facts.members) and agreement is not None and agreement.purpose in _MEMBERSHIP


def committed(s: Situation) -> Agreement | None:
    """The agreement after whose step the ranks hold for the next round."""
    held = s.previous.agreement
    is_present = held is not None and held.committed and held.run == s.job.observed.run
    return held if is_present and held is not None and held.purpose in _MEMBERSHIP else None


def is_broken(s: Situation, held: Round) -> bool:
    """Whether the members of a round cannot go on together.

    One is lost, has failed, cannot reach the store, or has not entered the round without a restart.
    """
    found = [(each, s.facts.members.by_host.get(host)) for each, host in zip(held.members, held.hosts, strict=True)]
    if any(_has_failed(each, held) for _, each in found):
        return True
    if any(_cannot_reach(each, held) for _, each in found):
        return s.now >= held.since + _UNREACHABLE_SECONDS
    if _has_not_been_entered(s, held):
        return True
    return _misses(s, held) and s.now >= _returned_at(s)


def _is_saving(s: Situation, held: Round) -> bool:
    """Whether another round would interrupt rank 0 while it saves for the next one."""
    agreement = committed(s)
    if agreement is None or s.now >= _hold_until(s, agreement, held):
        return False
    return s.facts.ranks.is_saving_alone(agreement)


def instants(s: Situation) -> Iterable[float | None]:
    """When time alone changes the round."""
    decision = s.previous
    held = _held(s, decision)
    if not s.facts.members:
        return ()
    if held is None:
        return (_forms_at(s, _waiting(s, decision, ())),)
    agreement = committed(s)
    hold_until = None if agreement is None else _hold_until(s, agreement, held)
    after = (held.since + _UNREACHABLE_SECONDS, held.since + READY_SECONDS)
    return *after, _returned_at(s), hold_until, _last_moment(s, held)


def _held(s: Situation, decision: Decision) -> Round | None:
    """The present round: the last one that was decided, or that the members have formed without a supervisor."""
    run, decided = s.job.observed.run, decision.round
    known = max(
        (each.known for each in s.facts.members.by_host.values() if each.known is not None),
        key=lambda each: each.number,
        default=None,
    )
    present = decided if decided is not None and decided.run == run else None
    if known is None or (present is not None and known.number <= present.number):
        return present
    found = [s.facts.members.by_host.get(host) for host in known.hosts]
    members = tuple("" if each is None else each.member for each in found)
    since = round(s.now, 6)
    return Round(
        number=known.number,
        run=run,
        members=members,
        hosts=known.hosts,
        in_process=known.in_process,
        since=since,
    )


def _formed(s: Situation, decision: Decision) -> Decision:
    """The first round of a run: at once if all hosts have a member that waits, otherwise after a delay."""
    waiting = _waiting(s, decision, ())
    is_complete = {host for host, _ in waiting} == decision.hosts - decision.exclusions
    at = _forms_at(s, waiting)
    if not is_complete and (at is None or s.now < at):
        return decision
    return _numbered(s, decision, _Change(_sized(s, waiting)))


def _forms_at(s: Situation, waiting: Candidates) -> float | None:
    if not usable_workers(len(waiting), s.job.spec):
        return None
    return max(each.since for _, each in waiting) + s.policy.resume_delay_seconds


def _agreed(s: Situation, decision: Decision, held: Round, change: _Change) -> Decision:
    """The decision to change the members, after the ranks have agreed on a step if they can."""
    last = _last_moment(s, held)
    if last is not None and s.now >= last:
        return _numbered(s, decision, change)
    if s.now < awaited_until(s):
        return decision  # This supervisor was started just now: the ranks may be in a collective.
    if not s.facts.ranks.agree_to(change.purpose):
        return _numbered(s, decision, change)
    outcome = negotiated(s, change.purpose)
    if isinstance(outcome, NoAgreement):
        return _numbered(s, decision, change)
    return with_agreement(decision, outcome)


def _regroups(s: Situation, held: Round) -> bool:
    """Whether the processes enter the next round without a restart; not if they have just failed to."""
    can = s.facts.ranks.agree_to(Purpose.REGROUP) or _is_being_entered(s, held)
    return can and not _has_not_been_entered(s, held)


def _is_being_entered(s: Situation, held: Round) -> bool:
    """Whether processes are still on their way into a round without a restart; those that join it agree to nothing yet.

    Not when a host of the round is about to go.
    """
    last = _last_moment(s, held)
    is_early = s.now < held.since + READY_SECONDS and (last is None or s.now < last)
    return held.in_process and is_early and not (_are_ready(s, held) and s.facts.ranks.agree_to(Purpose.REGROUP))


def _has_not_been_entered(s: Situation, held: Round) -> bool:
    """Whether processes that were to enter a round without a restart have not done so in time.

    A member that is missing may have entered it, and been lost since.
    """
    found = [s.facts.members.by_host.get(host) for host in held.hosts]
    present = [each for each in found if each is not None and each.member in held.members]
    is_late = held.in_process and s.now >= held.since + READY_SECONDS
    return is_late and any(each.ready < held.number for each in present)


def _are_ready(s: Situation, held: Round) -> bool:
    found = [s.facts.members.by_host.get(host) for host in held.hosts]
    return all(each is not None and each.ready >= held.number for each in found)


def _starting(s: Situation, decision: Decision, held: Round) -> tuple[Host, ...]:
    """The hosts whose members start their processes now, to join those that are not restarted."""
    if not _regroups(s, held):
        return ()
    outside = [(host, s.facts.members.by_host.get(host)) for host in decision.hosts - decision.exclusions]
    return tuple(sorted(host for host, each in outside if _starts(host, each, held)))


def _starts(host: Host, member: Member | None, held: Round) -> bool:
    """Also while it has started: it would end its processes if it were told something else."""
    if member is None:
        return False
    has_failed = _has_failed(member, held)
    return (host not in held.hosts or has_failed) and (member.waits or host in held.starting or member.started)


def _next(s: Situation, decision: Decision, held: Round) -> Decision:
    """The decision with the next round; without one while too few members are left."""
    return _numbered(s, decision, _change(s, decision, held))


def _numbered(s: Situation, decision: Decision, change: _Change) -> Decision:
    if not change.members:
        return _without_agreement(decision)
    held = decision.round
    number = 0 if held is None else held.number
    following = Round(
        number=number + 1,
        run=s.job.observed.run,
        members=tuple(each.member for _, each in change.members),
        hosts=change.hosts,
        in_process=change.in_process,
        # Their agents would end processes that still start, which may take longer than until the next change.
        starting=() if held is None else tuple(host for host in held.starting if host not in change.hosts),
        since=round(s.now, 6),
    )
    return replace(_without_agreement(decision, committed=True), round=following)


def _without_agreement(decision: Decision, *, committed: bool = False) -> Decision:
    """The decision without an agreement on the next round, unless that is committed."""
    held = decision.agreement
    is_dropped = held is not None and held.purpose in _MEMBERSHIP and (committed or not held.committed)
    return replace(decision, agreement=None) if is_dropped else decision


def _change(s: Situation, decision: Decision, held: Round) -> _Change:
    """The next round: without a restart if that is possible, as far as members that start and leave allow it."""
    allowed, members = decision.hosts - decision.exclusions, s.facts.members.by_host
    staying = [(host, members[host]) for host in held.hosts if host in allowed and host in members]
    outside = _outside(s, decision, held.hosts)
    if _regroups(s, held):
        unhurt = [(host, each) for host, each in staying if each.member in held.members and not _has_failed(each, held)]
        joining = [(host, each) for host, each in outside if each.started] if len(unhurt) == len(held.hosts) else []
        regrouped = _Change(_sized(s, [*unhurt, *joining]), in_process=True)
        if regrouped.members:
            return regrouped
    return _Change(_sized(s, [*staying, *((host, each) for host, each in outside if each.waits or each.started)]))


def _sized(s: Situation, candidates: Candidates) -> Candidates:
    """The first candidates, as many as the job can use."""
    return candidates[: usable_workers(len(candidates), s.job.spec)]


def _waiting(s: Situation, decision: Decision, held: Iterable[Host]) -> Candidates:
    return [(host, each) for host, each in _outside(s, decision, held) if each.waits]


def _outside(s: Situation, decision: Decision, held: Iterable[Host]) -> Candidates:
    """The members on hosts that the job may use and the round does not."""
    allowed, members = (decision.hosts - decision.exclusions).difference(held), s.facts.members.by_host
    return [(host, members[host]) for host in sorted(allowed) if host in members]


def _misses(s: Situation, held: Round) -> bool:
    """Whether a member is not connected, or another one on its host."""
    found = [s.facts.members.by_host.get(host) for host in held.hosts]
    return any(each is None or each.member != name for name, each in zip(held.members, found, strict=True))


def _has_failed(member: Member | None, held: Round) -> bool:
    return member is not None and member.failed and member.round == held.number


def _cannot_reach(member: Member | None, held: Round) -> bool:
    return member is not None and member.unreachable == held.number


def _returned_at(s: Situation) -> float:
    """From when on a missing member counts as lost: this supervisor may have been started just now."""
    return s.facts.since + RETURN_SECONDS


def _hold_until(s: Situation, agreement: Agreement, held: Round) -> float:
    """Until when the ranks are waited for after their step was committed.

    What they said is lost with the supervisor that heard it: another one waits no longer than it takes to agree.
    """
    end, last = agreement.since + s.policy.stop_timeout_seconds, _last_moment(s, held)
    if s.facts.since > agreement.since:
        end = min(end, s.facts.since + s.policy.agreement_timeout_seconds)
    return end if last is None else min(end, last)


def _last_moment(s: Situation, held: Round) -> float | None:
    """When the members change in any case, because the first host of the round is about to go."""
    deadline = s.deadline(frozenset(held.hosts))
    return None if deadline is None else deadline - s.policy.leave_margin_seconds
