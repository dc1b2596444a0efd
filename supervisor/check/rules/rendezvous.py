"""Whether torchrun's nodes find each other again when one of them is gone."""

from collections.abc import Iterator

from supervisor.check.command import KUBEAI_RUN
from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob
from supervisor.check.torchrun import Agent, agents

_FIX = "Use the backend of the supervisor: --rdzv-backend=kubeai, or rdzvBackend: kubeai in an elasticPolicy."


@rule("rendezvous-standalone", Severity.ERROR, "torchrun --standalone, which replaces the rendezvous backend")
def rendezvous_standalone(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for agent in agents(job):
        if agent.standalone and _has_many_nodes(job, agent):
            yield Problem(
                f"{agent.place} --standalone",
                "With --standalone or PET_STANDALONE torchrun ignores the rendezvous backend without a word, and each "
                "node trains alone.",
                f"Remove it. {_FIX}",
            )


@rule("rendezvous-store-on-worker", Severity.WARNING, "a rendezvous store on a worker, which may be lost itself")
def rendezvous_store_on_worker(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for agent in agents(job):
        if agent.backend == "c10d" and not agent.standalone:
            host = agent.endpoint.rpartition(":")[0] or agent.endpoint or "one of the nodes"
            yield Problem(
                f"{agent.place} --rdzv-backend",
                f"The store of the rendezvous (c10d) is a process on {host}: if that node is lost without a notice, "
                "the run ends. An announced reclaim of any node stops the whole run after a checkpoint.",
                _FIX,
            )


@rule("rendezvous-notices-late", Severity.WARNING, "a rendezvous that notices a leave only by a broken collective")
def rendezvous_notices_late(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for agent in agents(job):
        if agent.backend.startswith(("c10d", "etcd")) and not agent.standalone:
            yield Problem(
                f"{agent.place} --rdzv-backend",
                f"With the backend {agent.backend} the other nodes notice a leave by a broken collective: all steps "
                "since the last checkpoint are repeated, and each node uses one of its restarts.",
                _FIX,
            )


def _has_many_nodes(job: CheckedJob, agent: Agent) -> bool:
    """Whether more than one node is meant; a job of a single node may well run alone."""
    pods = sum(role.replicas for role in job.roles)
    return pods > 1 or agent.backend != "static" or agent.fixed_nodes != 1 or any(job.launches(KUBEAI_RUN))
