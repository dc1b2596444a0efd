"""Which elastic agents of a torchrun job train together. Pure.

A round lasts until its members or the job's hosts change. If all ranks can, they first agree on a step, save after it
and hold outside any collective; only then is the next round decided, so that nothing breaks and no step is repeated.
If a member is lost, or time is up, the next round is decided at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from supervisor.decide.agreement import NoAgreement, negotiated
from supervisor.decide.members import Member
from supervisor.decide.situation import Situation
from supervisor.decide.size import usable_workers
from supervisor.decide.stopping import with_agreement
from supervisor.domain.agreement import Agreement, Purpose
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision
from supervisor.domain.rendezvous import Round

RETURN_SECONDS = 5.0
"""Members whose stream ended with a supervisor find the next one within this time."""

_UNREACHABLE_SECONDS = 2.0
"""The shortest time between two rounds of which a member cannot reach the store."""


def with_round(s: Situation, decision: Decision) -> Decision:
    """The decision with the next round, or with the next stage of the agreement that comes before it."""
    if not s.facts.members or s.facts.members.have_ended:
        return decision
    held = _held(s, decision)
    if held is None:
        return _formed(s, decision)
    decision = replace(decision, round=held)
    if is_broken(s, held):
        return _next(s, decision, held)
    agreement = committed(s)
    if agreement is not None:
        is_due = s.facts.ranks.have_held(agreement) or s.now >= _hold_until(s, held, agreement)
        return _next(s, decision, held) if is_due else decision
    if not _wanted(s, decision, held):
        return _without_agreement(decision)
    return _agreed(s, decision, held)


def changes_members(s: Situation, decision: Decision) -> bool:
    """Whether the ranks are on the way to another round: another agreement would have to wait for that."""
    agreement = decision.agreement
    return bool(s.facts.members) and agreement is not None and agreement.purpose is Purpose.RENDEZVOUS


def committed(s: Situation) -> Agreement | None:
    """The agreement after whose step the ranks hold for the next round."""
    held = s.previous.agreement
    is_present = held is not None and held.committed and held.run == s.job.observed.run
    return held if is_present and held is not None and held.purpose is Purpose.RENDEZVOUS else None


def is_broken(s: Situation, held: Round) -> bool:
    """Whether the members of a round cannot go on together: one is lost, has failed, or cannot reach the store."""
    found = [(each, s.facts.members.by_host.get(host)) for each, host in zip(held.members, held.hosts, strict=True)]
    if any(_has_failed(each, held) for _, each in found):
        return True
    if any(_cannot_reach(each, held) for _, each in found):
        return s.now >= held.since + _UNREACHABLE_SECONDS
    is_lost = any(each is None or each.member != name for name, each in found)
    return is_lost and s.now >= _returned_at(s)


def instants(s: Situation) -> Iterable[float | None]:
    """When time alone changes the round."""
    decision = s.previous
    held = _held(s, decision)
    if not s.facts.members:
        return ()
    if held is None:
        return (_forms_at(s, _waiting(s, decision, ())),)
    agreement = committed(s)
    hold_until = None if agreement is None else _hold_until(s, held, agreement)
    return _returned_at(s), held.since + _UNREACHABLE_SECONDS, hold_until, _last_moment(s, held)


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
    return _numbered(s, decision, waiting)


def _forms_at(s: Situation, waiting: Sequence[tuple[Host, Member]]) -> float | None:
    if not usable_workers(len(waiting), s.job.spec):
        return None
    return max(each.since for _, each in waiting) + s.policy.resume_delay_seconds


def _agreed(s: Situation, decision: Decision, held: Round) -> Decision:
    """The decision to change the members, after the ranks have agreed on a step if they can."""
    last = _last_moment(s, held)
    if not s.facts.ranks.agree_to(Purpose.RENDEZVOUS) or (last is not None and s.now >= last):
        return _next(s, decision, held)
    outcome = negotiated(s, Purpose.RENDEZVOUS)
    if isinstance(outcome, NoAgreement):
        return _next(s, decision, held)
    return with_agreement(decision, outcome)


def _next(s: Situation, decision: Decision, held: Round) -> Decision:
    """The decision with the next round; without one while too few members are left."""
    return _numbered(s, decision, _candidates(s, decision, held))


def _numbered(s: Situation, decision: Decision, candidates: Sequence[tuple[Host, Member]]) -> Decision:
    size = usable_workers(len(candidates), s.job.spec)
    if not size:
        return _without_agreement(decision)
    chosen = candidates[:size]
    number = 0 if decision.round is None else decision.round.number
    following = Round(
        number=number + 1,
        run=s.job.observed.run,
        members=tuple(each.member for _, each in chosen),
        hosts=tuple(host for host, _ in chosen),
        since=round(s.now, 6),
    )
    return replace(_without_agreement(decision, committed=True), round=following)


def _without_agreement(decision: Decision, *, committed: bool = False) -> Decision:
    """The decision without an agreement on the next round, unless that is committed."""
    held = decision.agreement
    is_dropped = held is not None and held.purpose is Purpose.RENDEZVOUS and (committed or not held.committed)
    return replace(decision, agreement=None) if is_dropped else decision


def _wanted(s: Situation, decision: Decision, held: Round) -> bool:
    """Whether the next round would have other members than the present one."""
    candidates = _candidates(s, decision, held)
    size = usable_workers(len(candidates), s.job.spec)
    return bool(size) and tuple(host for host, _ in candidates[:size]) != held.hosts


def _candidates(s: Situation, decision: Decision, held: Round) -> Sequence[tuple[Host, Member]]:
    """The members of the next round in order: those that stay, as they were ordered, and then those that wait."""
    allowed, members = decision.hosts - decision.exclusions, s.facts.members.by_host
    staying = [(host, members[host]) for host in held.hosts if host in allowed and host in members]
    return [*staying, *_waiting(s, decision, held.hosts)]


def _waiting(s: Situation, decision: Decision, held: Iterable[Host]) -> Sequence[tuple[Host, Member]]:
    allowed = (decision.hosts - decision.exclusions).difference(held)
    return [(host, each) for host, each in sorted(s.facts.members.by_host.items()) if each.waits and host in allowed]


def _has_failed(member: Member | None, held: Round) -> bool:
    return member is not None and member.failed and member.round == held.number


def _cannot_reach(member: Member | None, held: Round) -> bool:
    return member is not None and member.unreachable == held.number


def _returned_at(s: Situation) -> float:
    """From when on a missing member counts as lost: this supervisor may have been started just now."""
    return s.facts.since + RETURN_SECONDS


def _hold_until(s: Situation, held: Round, agreement: Agreement) -> float:
    """Until when the ranks are waited for after their step was committed."""
    end, last = agreement.since + s.policy.stop_timeout_seconds, _last_moment(s, held)
    return end if last is None else min(end, last)


def _last_moment(s: Situation, held: Round) -> float | None:
    """When the members change in any case, because the first host of the round is about to go."""
    deadline = s.deadline(frozenset(held.hosts))
    return None if deadline is None else deadline - s.policy.leave_margin_seconds
