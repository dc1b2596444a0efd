"""Rules that every decision must obey, derived from the facts and not from the deciding code."""

from dataclasses import replace

from supervisor.decide.directives import JobDirectives, order_for
from supervisor.decide.grant import takes_any_size, usable_workers
from supervisor.decide.plan import Plan, plan
from supervisor.decide.situation import JobFacts
from supervisor.decide.urgency import deadline_of
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Decision, Phase, RequestKind, Stop, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.domain.order import ProcessDirectiveKind, Worker
from tests.supervisor.decide.decide_world import POLICY, DecisionWorld

LIVE = (Phase.RUNNING, Phase.SHRINKING, Phase.RESUMING)
WAITS = (Phase.WAITING, Phase.SUSPENDED)
OVER = (Phase.FINISHED, Phase.TIMED_OUT)


def check(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, planned: Plan) -> None:
    after = replace(job, decision=planned.decision)
    _same_input_same_output(world, job, facts, planned)
    _nothing_more_to_decide(world, after, facts, planned)
    _generation_grows(job.decision, planned.decision)
    _over_is_over(job, planned)
    _phases_follow_each_other(job.decision.phase, planned.decision.phase)
    if planned.decision.phase in LIVE:
        _never_below_minimum_with_a_notice(after, facts)
        _hosts_are_sound(after, facts)
        _none_joins_for_one_that_leaves(job, after)
    if planned.decision.phase in (Phase.RUNNING, Phase.SHRINKING):
        _excluded_are_the_doomed(world, after, facts)
    if job.decision.phase is Phase.STOPPING is planned.decision.phase:
        _list_is_frozen(job.decision, planned.decision)
    _starts_are_sound(world, job, facts, planned.decision)
    _stops_are_justified(world, job, facts, planned.decision)
    _stops_end_for_a_reason(world, job, facts, planned.decision)
    _waiting_is_bounded(world, after, facts)
    _moves_are_sound(world, job, after)
    _directives_follow(after, facts)
    _orders_follow(after)
    _remember(world, after, facts)


def _present(job: SupervisedJob) -> frozenset[Host]:
    return job.decision.hosts & job.observed.hosts


def _doomed(job: SupervisedJob, facts: JobFacts) -> frozenset[Host]:
    return _present(job) & facts.notices.keys()


def _live(job: SupervisedJob, facts: JobFacts) -> int:
    return len(_present(job) - _doomed(job, facts))


def _too_few(job: SupervisedJob, facts: JobFacts) -> bool:
    """Whether the hosts that a decided job uses make no size that it could have."""
    used = _present(job) - job.decision.exclusions - _doomed(job, facts)
    return not usable_workers(len(used), job.spec)


def _launcher_doomed(job: SupervisedJob, facts: JobFacts) -> bool:
    return job.spec.launcher_host in facts.notices


def _same_input_same_output(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, planned: Plan) -> None:
    assert plan(job, facts, world.now, POLICY) == planned


def _nothing_more_to_decide(world: DecisionWorld, after: SupervisedJob, facts: JobFacts, planned: Plan) -> None:
    assert plan(after, facts, world.now, POLICY) == planned
    assert planned.wake_at is None or planned.wake_at > world.now


def _generation_grows(before: Decision, after: Decision) -> None:
    assert after.generation == before.generation + (replace(after, generation=before.generation) != before)


def _over_is_over(job: SupervisedJob, planned: Plan) -> None:
    after = planned.decision
    assert after.phase is not Phase.FINISHED or job.over or _is_asked(job, RequestKind.STOP) or _was_finished(job)
    if job.over:
        assert after.phase in OVER
        assert (planned.actions, planned.wake_at) == ((), None)
        assert after.hosts == (job.decision.hosts if job.observed.running else frozenset())
        if job.decision.phase in OVER:
            assert after.reason == job.decision.reason or job.decision.phase is Phase.FINISHED


def _is_asked(job: SupervisedJob, kind: RequestKind) -> bool:
    request = job.observed.request
    return request is not None and request.kind is kind


def _was_finished(job: SupervisedJob) -> bool:
    return job.decision.phase is Phase.FINISHED


def _phases_follow_each_other(before: Phase, after: Phase) -> None:
    if before in OVER:
        assert after is before
    if before is Phase.STOPPING:
        assert after not in (Phase.RUNNING, Phase.SHRINKING, Phase.WAITING)
    if before is Phase.SUSPENDED:
        assert after not in (Phase.RUNNING, Phase.SHRINKING, Phase.WAITING)
    if after is Phase.WAITING:
        assert before is Phase.WAITING
    if after is Phase.TIMED_OUT:
        assert before in (*WAITS, Phase.TIMED_OUT, Phase.STOPPING, *LIVE)


def _never_below_minimum_with_a_notice(after: SupervisedJob, facts: JobFacts) -> None:
    assert not _doomed(after, facts) or not _too_few(after, facts)
    assert not _launcher_doomed(after, facts)


def _hosts_are_sound(after: SupervisedJob, facts: JobFacts) -> None:
    decision = after.decision
    assert decision.hosts <= after.observed.hosts
    assert decision.exclusions <= decision.hosts
    assert len(decision.hosts - decision.exclusions) <= after.spec.max_workers
    surplus = decision.exclusions - facts.notices.keys()
    if takes_any_size(after.spec):
        assert not surplus, "a withdrawn notice leaves no exclusion"
    elif decision.phase is not Phase.RESUMING and not _too_few(after, facts):
        used = len(decision.hosts - decision.exclusions)
        assert usable_workers(used, after.spec) == used, "every size is one that the job can have"
        may_join = decision.phase is Phase.RUNNING
        assert not may_join or usable_workers(used + len(surplus), after.spec) == used, "no host is left out in vain"


def _none_joins_for_one_that_leaves(before: SupervisedJob, after: SupervisedJob) -> None:
    """Both in one change of the list can block a launcher; a host that is gone without a notice has left before."""
    if before.decision.phase not in LIVE or takes_any_size(after.spec):
        return
    used, now_used = (job.decision.hosts - job.decision.exclusions for job in (before, after))
    assert not (used & after.observed.hosts) - now_used or not now_used - used


def _excluded_are_the_doomed(world: DecisionWorld, after: SupervisedJob, facts: JobFacts) -> None:
    doomed, decision = _doomed(after, facts), after.decision
    if decision.phase is Phase.RUNNING:
        assert decision.exclusions <= world.launchers[after.name].exclusions, "Shrinking ends when the list is in place"
    if decision.window_until is None:
        assert decision.exclusions & facts.notices.keys() == doomed
        return
    pending = doomed - decision.exclusions
    assert pending
    ends = [facts.notices[host].first_seen + POLICY.window_seconds for host in pending]
    ends += [deadline_of(facts.notices[host], POLICY) - POLICY.margin_seconds for host in pending]
    assert world.now < decision.window_until == round(min(ends), 6)  # As stores keep it.


def _list_is_frozen(before: Decision, after: Decision) -> None:
    assert (after.hosts, after.exclusions) == (before.hosts, before.exclusions)


def _starts_are_sound(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, after: Decision) -> None:
    if job.decision.phase in WAITS and after.phase in LIVE:
        assert len(after.hosts) == usable_workers(len(after.hosts), job.spec) <= job.spec.requested_workers
        assert after.hosts
        assert after.hosts <= facts.granted
        assert not after.hosts & facts.notices.keys()
        assert after.run > max(job.decision.run, job.observed.run)
        assert not job.observed.running
        assert not job.observed.ending
        assert job.observed.request is None
        assert job.decision.given_up_since is None
        assert job.observed.hub is None or not job.observed.hub.given_up, "its hub may delete it at any moment"
        _starts_are_not_rash(world, job, after)


def _starts_are_not_rash(world: DecisionWorld, job: SupervisedJob, after: Decision) -> None:
    since, pause = job.decision.capacity_since, job.decision.not_before
    assert pause is None or world.now >= pause
    assert world.now >= world.histories[job.name].rests_until, "a short run is followed by a pause"
    waited = since is not None and world.now >= since + POLICY.resume_delay_seconds
    assert waited or len(after.hosts) == job.spec.requested_workers


def _stops_are_justified(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, after: Decision) -> None:
    if job.decision.phase not in LIVE or after.phase in (*LIVE, *OVER):
        return
    history, below = world.histories[job.name], not usable_workers(_live(job, facts), job.spec)
    below = below or (_too_few(job, facts) and not takes_any_size(job.spec))
    lost = history.below_since is not None and world.now >= history.below_since + POLICY.lost_grace_seconds
    late = history.resuming_since is not None and world.now >= history.resuming_since + POLICY.resume_timeout_seconds
    asked = job.observed.ending or job.observed.request is not None
    stopped = asked or _launcher_doomed(job, facts) or (below and (bool(_doomed(job, facts)) or lost))
    given_up = job.decision.phase is Phase.RESUMING and after.phase is not Phase.STOPPING and late
    assert stopped or given_up
    if after.stop is not None:
        assert after.stop.since == world.now
        assert after.stop.generation == after.generation
        assert not after.stop.everyone


def _breaking(job: SupervisedJob, facts: JobFacts) -> list[float]:
    in_place = job.observed.applied >= job.decision.excluded_at
    hosts = job.decision.hosts - (job.decision.exclusions if in_place else frozenset())
    if job.spec.launcher_host is not None:
        hosts |= {job.spec.launcher_host}
    return [deadline_of(notice, POLICY) for host, notice in facts.notices.items() if host in hosts]


def _is_near(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, seconds: float) -> bool:
    return any(deadline - seconds <= world.now for deadline in _breaking(job, facts))


def _has_answered(job: SupervisedJob, stop: Stop) -> bool:
    answer = job.observed.acknowledgement
    run = max(stop.run, job.observed.run)
    return answer is not None and answer.run == run and answer.generation >= stop.generation


def _stops_end_for_a_reason(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, after: Decision) -> None:
    stop = job.decision.stop
    if job.decision.phase is not Phase.STOPPING or job.over:
        return
    assert stop is not None
    bounded = world.now >= stop.since + POLICY.stop_timeout_seconds and not _breaking(job, facts)
    broken = world.now >= stop.since + POLICY.margin_seconds and _is_near(world, job, facts, 0)
    ended = not job.observed.running or _has_answered(job, stop) or bounded or broken
    assert (after.phase is not Phase.STOPPING) == ended
    if after.stop is not None:
        _everybody_is_told_in_time(world, job, facts, after.stop)


def _everybody_is_told_in_time(world: DecisionWorld, job: SupervisedJob, facts: JobFacts, stop: Stop) -> None:
    since = max(facts.rank_zero.since, stop.since)
    breaking = min(_breaking(job, facts), default=stop.since + POLICY.stop_timeout_seconds)
    end = max(breaking, stop.since + POLICY.margin_seconds)
    heard = facts.rank_zero.connected and world.now >= since + POLICY.rank_zero_head_start_seconds
    near = heard and world.now >= end - POLICY.margin_seconds
    alone = not facts.rank_zero.connected and world.now >= since + POLICY.rank_zero_grace_seconds
    last = world.now >= end - POLICY.leave_margin_seconds
    before = job.decision.stop is not None and job.decision.stop.everyone
    assert stop.everyone == (alone or near or last or before)


def _waiting_is_bounded(world: DecisionWorld, after: SupervisedJob, facts: JobFacts) -> None:
    decision, history, now = after.decision, world.histories[after.name], world.now
    if decision.phase is Phase.RESUMING and history.resuming_since is not None:
        assert now < history.resuming_since + POLICY.resume_timeout_seconds + POLICY.lost_grace_seconds
    if decision.phase in LIVE and history.below_since is not None and _too_few(after, facts):
        assert now < history.below_since + POLICY.lost_grace_seconds
    is_free = decision.phase in WAITS and not decision.hosts and not after.observed.running
    if is_free and after.observed.request is not None:
        assert (decision.phase, decision.waiting_since) == (Phase.SUSPENDED, None), "it waits for a person alone"
    elif is_free and after.spec.max_wait_seconds and decision.given_up_since is None:
        assert decision.waiting_since is not None
        assert now < decision.waiting_since + after.spec.max_wait_seconds


def _moves_are_sound(world: DecisionWorld, before: SupervisedJob, after: SupervisedJob) -> None:
    """A job that a hub can move never times out; it is given up after its whole wait, and then not for ever."""
    decision, since = after.decision, after.decision.given_up_since
    if after.spec.can(Capability.MOVES):
        assert decision.phase is not Phase.TIMED_OUT
    if since is None:
        return
    assert after.spec.can(Capability.MOVES)
    assert (decision.phase, decision.hosts, after.observed.request) == (Phase.SUSPENDED, frozenset(), None)
    assert world.now < since + POLICY.move_timeout_seconds
    if before.decision.given_up_since is None:
        assert decision.waiting_since is not None
        assert world.now >= decision.waiting_since + after.spec.max_wait_seconds
        assert not after.observed.running


def _directives_follow(after: SupervisedJob, facts: JobFacts) -> None:
    decision = after.decision
    for host in decision.hosts:
        for rank in (0, 1):
            worker = Worker("process", after.id, after.observed.run, host, rank)
            told = JobDirectives.of(after, facts.notices, POLICY).directive(worker)
            if told.kind is ProcessDirectiveKind.STOP:
                assert decision.phase in (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT)
                assert rank == 0 or decision.stop is None or decision.stop.everyone
            if told.kind is ProcessDirectiveKind.LEAVE:
                _leaves_with_its_host(facts.notices[host], decision, told.act_at)
            if _announced(facts, host) and not after.over:
                assert told.kind in (ProcessDirectiveKind.LEAVE, ProcessDirectiveKind.STOP), (
                    "nobody goes down with its host unwarned"
                )
            if decision.phase is Phase.STOPPING and rank == 0:
                assert told.kind is ProcessDirectiveKind.STOP


def _announced(facts: JobFacts, host: Host) -> bool:
    return host in facts.notices and facts.notices[host].state is NoticeState.ACTIVE


def _leaves_with_its_host(notice: ReclaimNotice, decision: Decision, at: float | None) -> None:
    """Shortly before the deadline; where there is less time than that, not before a decision could be there."""
    last = deadline_of(notice, POLICY) - POLICY.leave_margin_seconds
    since = notice.first_seen if decision.stop is None else decision.stop.since + POLICY.margin_seconds
    assert at is not None
    assert at >= last
    assert at == last or at <= max(last + POLICY.leave_margin_seconds, since + 1)


def _orders_follow(after: SupervisedJob) -> None:
    order, decision = order_for(after), after.decision
    assert (frozenset(order.hosts), frozenset(order.exclusions)) == (decision.hosts, decision.exclusions)
    assert order.workers == len(decision.hosts) - len(decision.exclusions) >= 0
    assert order.stopping == (decision.phase is Phase.STOPPING)


def _remember(world: DecisionWorld, after: SupervisedJob, facts: JobFacts) -> None:
    history, decision = world.histories[after.name], after.decision
    if decision.phase in LIVE and decision.phase is not Phase.RESUMING and decision.run != history.run:
        history.run, history.run_since = decision.run, world.now
    stopped = decision.phase is Phase.STOPPING and history.below_since is not None
    if stopped and _is_lost(world, after, facts, history.below_since or 0.0):
        is_short = (history.below_since or 0.0) < history.run_since + POLICY.resume_timeout_seconds
        history.rests_until = world.now + POLICY.resume_backoff_seconds if is_short else 0.0
    below = decision.phase in LIVE and _too_few(after, facts)
    history.below_since = (history.below_since or world.now) if below else None
    resuming = decision.phase is Phase.RESUMING
    history.resuming_since = (history.resuming_since or world.now) if resuming else None


def _is_lost(world: DecisionWorld, after: SupervisedJob, facts: JobFacts, below_since: float) -> bool:
    """Whether hosts that were lost without a notice are the only reason to stop."""
    asked = after.observed.ending or after.observed.request is not None
    warned = bool(_doomed(after, facts)) or _launcher_doomed(after, facts)
    return world.now >= below_since + POLICY.lost_grace_seconds and not asked and not warned
