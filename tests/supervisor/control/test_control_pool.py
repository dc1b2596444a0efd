"""Free hosts are granted to jobs independently of earlier grants."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.control.pool import HostPool, JobIndex
from supervisor.decide.grant import grants
from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.job import SupervisedJob
from tests.supervisor.decide.decide_builders import first, hosts, running_job, spec, suspended_job, waiting_job
from tests.testkit.properties import examples

Jobs = dict[JobName, SupervisedJob]

_NUMBERS = st.frozensets(st.integers(1, 10), max_size=8)


@st.composite
def _jobs(draw: st.DrawFn) -> Jobs:
    """A few jobs of all sorts, which may hold and list the same hosts, and others that none of them has."""
    jobs: Jobs = {}
    for name in draw(st.sets(st.sampled_from(["a", "b", "c", "d"]))):
        listed, held = hosts(*draw(_NUMBERS)), hosts(*draw(_NUMBERS))
        asked = spec(draw(st.integers(1, 3)), draw(st.integers(3, 6)))
        job = draw(
            st.sampled_from(
                [running_job(asked, name=name), suspended_job(asked, name=name), waiting_job(asked, name=name)]
            )
        )
        decision = replace(job.decision, hosts=held if job.observed.running else frozenset())
        jobs[job.name] = replace(job, decision=decision, observed=replace(job.observed, hosts=listed))
    return jobs


@examples(60)
@given(steps=st.lists(st.tuples(_jobs(), _NUMBERS, _NUMBERS), min_size=1, max_size=6))
def test_what_is_granted_does_not_depend_on_what_was(steps: list[tuple[Jobs, frozenset[int], frozenset[int]]]) -> None:
    """A pool that has followed every change grants what is worked out from all jobs at once."""
    pool = HostPool()
    for jobs, available, noticed in steps:
        free, bad = hosts(*available), hosts(*noticed)
        granted = pool.granted(jobs, free, bad)
        assert {name: grant.hosts for name, grant in granted.items()} == grants(jobs.values(), free, bad)


def test_hosts_of_pods_are_no_matter_of_nodes() -> None:
    """A cluster's job neither holds nor gets nodes, whatever its pods are called."""
    job = replace(running_job(workers=2), name=cluster_job("team", "trainingjob", "bert"))
    waiting = waiting_job(spec(2), name="waiting")
    granted = HostPool().granted({job.name: job, waiting.name: waiting}, first(2), ())
    assert {name: grant.hosts for name, grant in granted.items()} == {waiting.name: first(2)}


@examples(60)
@given(steps=st.lists(_jobs(), min_size=1, max_size=6), asked=_NUMBERS)
def test_an_index_forgets_nothing_and_keeps_nothing(steps: list[Jobs], asked: frozenset[int]) -> None:
    """After every change it finds just the jobs that are about a key, and says which jobs are others."""
    index = JobIndex(lambda job, _: job.own_hosts)
    before: Jobs = {}
    for jobs in steps:
        others = {name for name, job in jobs.items() if before.get(name) is not job}
        assert index.follow(jobs) == others | (before.keys() - jobs.keys())
        assert index.follow(jobs) == set()
        expected: dict[Host, set[JobName]] = {}
        for name, job in jobs.items():
            for host in job.own_hosts:
                expected.setdefault(host, set()).add(name)
        assert index.by_key == expected
        assert index.of(hosts(*asked)) == set().union(*(expected.get(host, ()) for host in hosts(*asked)))
        before = jobs
