"""How many workers of a job belong to which account of the ledger at one moment. Pure."""

from collections import Counter
from collections.abc import Mapping

from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Phase, SupervisedJob
from supervisor.domain.ledger import Account


def workers_by_account(job: SupervisedJob) -> Mapping[Account, int]:
    """Returns how many workers of a job belong to each account at this moment; none once the job has ended."""
    if job.over or job.spec.refused:
        return {}
    counted = Counter({account: len(hosts) for account, hosts in hosts_by_account(job).items()})
    counted[_lacking(job, counted.total())] += max(0, job.spec.requested_workers - counted.total())
    return +counted


def hosts_by_account(job: SupervisedJob) -> Mapping[Account, frozenset[Host]]:
    """Returns the hosts of the workers that a job holds, each in one account; none once the job has ended."""
    if job.over or job.spec.refused:
        return {}
    held = _held(job)
    if not job.observed.running or job.decision.phase not in (Phase.RUNNING, Phase.SHRINKING):
        return {_held_by(job): held}
    left_out = held - job.workers
    return {
        Account.UNMEASURED: job.workers,  # until its processes say what they did
        Account.LEAVING: left_out & job.decision.exclusions,
        Account.JOINING: left_out - job.decision.exclusions,
    }


def _held(job: SupervisedJob) -> frozenset[Host]:
    """The hosts that nobody else can use now: those of a run, and those on which a controller has pods of the job."""
    if job.spec.can(Capability.MAKES_HOSTS):
        return job.observed.hosts
    has_run = job.observed.running or job.decision.phase is Phase.RESUMING
    return job.decision.hosts & job.observed.hosts if has_run else frozenset()


def _held_by(job: SupervisedJob) -> Account:
    """The account of the hosts that a job holds while it does not train."""
    is_stopping = job.decision.phase in (Phase.STOPPING, Phase.SUSPENDED, Phase.QUEUED, Phase.TIMED_OUT)
    return Account.STOPPING if is_stopping else Account.STARTING


def _lacking(job: SupervisedJob, held: int) -> Account:
    """The account of the workers that a job has asked for and does not have."""
    if job.observed.queue or job.decision.phase is Phase.QUEUED:
        return Account.QUEUED
    if job.observed.request is not None and not job.observed.running:
        return Account.PAUSED
    return Account.MISSING if held else Account.WAITING
