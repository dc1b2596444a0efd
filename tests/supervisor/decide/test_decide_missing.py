"""What a waiting job lacks is said of each host, and agrees with what is granted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from supervisor.decide.explanation import NO_NODES, NOTHING, Lack, Missing, NodesAtPresent, missing
from supervisor.decide.grant import grants
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Result, SupervisedJob
from supervisor.domain.notice import OPERATOR, SIMULATED
from tests.supervisor.decide.decide_builders import (
    first,
    hosts,
    notice,
    noticed,
    observing,
    running_job,
    spec,
    suspended_job,
    waiting_job,
)

N1, N2, N3, N4, N5, N6 = sorted(first(6))
FILE, AWS = Source("file"), Source("aws")


def nodes(
    clear: frozenset[Host],
    *,
    unknown: Mapping[Host, Sequence[Source]] | None = None,
    holders: Mapping[str, Sequence[JobName]] | None = None,
    noticed_hosts: Sequence[int] = (),
) -> NodesAtPresent:
    known = {**dict.fromkeys(clear, ()), **{Host(f"n{number}"): () for number in noticed_hosts}, **(unknown or {})}
    return NodesAtPresent(
        clear=clear,
        noticed=noticed(*(notice(number) for number in noticed_hosts)),
        unknown=known.get,
        holders=holders or {},
    )


def test_each_host_says_what_it_lacks() -> None:
    job = waiting_job(spec(4, 6))
    present = nodes(
        hosts(5, 6),
        unknown={N3: (FILE, AWS), N4: ()},
        noticed_hosts=[2],
        holders={N5: [JobName("other")]},
    )
    found = missing(job, present)
    assert {one.host: (one.lack, one.why) for one in found.hosts} == {
        N1: (Lack.NO_AGENT, "no agent is connected"),
        N2: (Lack.NOTICE, "noticed by metadata"),
        N3: (Lack.SOURCE_UNKNOWN, "the sources file and aws have not answered whether the node will be reclaimed"),
        N4: (Lack.SOURCE_UNKNOWN, "the agent has not answered whether the node will be reclaimed"),
        N5: (Lack.IN_USE, "used by job other"),
    }
    assert found.summary.startswith(
        "1 of 6 listed hosts can be used, and 4 are needed. n1: no agent is connected. n2: noticed"
    )
    assert "n5: used by another job." in found.summary
    assert "job other" not in found.summary


def test_hosts_with_the_same_lack_are_named_together_and_counted() -> None:
    found = missing(waiting_job(spec(2, 8), first(8)), nodes(hosts()))
    assert found.summary == (
        "0 of 8 listed hosts can be used, and 2 are needed. n1, n2, n3, n4, n5 and 3 more: no agent is connected."
    )
    assert len(found.hosts) == 8


def test_a_list_with_other_names_than_the_agents_is_recognized() -> None:
    listed = frozenset({Host("gpu1"), Host("gpu2")})
    found = missing(waiting_job(spec(2, 2), listed), nodes(first(2)))
    assert found.summary.endswith("Not in the list: 2 nodes with an agent and without a notice.")


def test_a_list_that_is_too_short_is_named() -> None:
    assert (
        "The launcher's host list is too short: it has 0."
        in missing(waiting_job(spec(2), hosts()), nodes(hosts())).summary
    )


def test_the_launchers_own_host_is_named() -> None:
    asked = replace(spec(1, 2), launcher_host=Host("n9"))
    found = missing(waiting_job(asked, first(2)), nodes(first(2), noticed_hosts=[9]))
    assert found.summary.endswith("The launcher's own host n9 is noticed by metadata.")


@pytest.mark.parametrize(
    "job",
    [
        running_job(),
        observing(suspended_job(), running=True),
        observing(waiting_job(), ending=True),
        observing(waiting_job(), result=Result.FAILED),
        waiting_job(name="ml/trainingjob.resnet"),
    ],
    ids=["running", "its run has to end first", "is being ended", "over", "its operator makes its hosts"],
)
def test_a_job_that_does_not_wait_for_hosts_lacks_none(job: SupervisedJob) -> None:
    assert missing(job, nodes(hosts())) == NOTHING


@pytest.mark.parametrize("count", range(7))
def test_it_agrees_with_what_is_granted(count: int) -> None:
    job, available = waiting_job(spec(3, 6)), first(count)
    usable = job.observed.hosts - {one.host for one in missing(job, nodes(available)).hosts}
    assert grants([job], available).get(job.name, frozenset()) == (usable if len(usable) >= 3 else frozenset())


def test_a_run_that_is_smaller_than_requested_says_which_hosts_it_lacks() -> None:
    """The launcher, which waits for nothing, is told nothing of it."""
    job = observing(running_job(spec(2, 6), 3), hosts=first(6))
    found = missing(job, nodes(hosts(1, 2, 3, 6), noticed_hosts=[4]))
    assert found.shortfall == ("3 of 6 requested hosts are in use. n4: noticed by metadata. n5: no agent is connected.")
    assert (found.summary, [one.host for one in found.hosts]) == ("", [N4, N5])


def test_a_smaller_run_of_an_operators_job_says_how_small_it_is() -> None:
    """Its controller makes the hosts that it lacks, so they have no names."""
    job = running_job(spec(2, 6), 4, name="ml/trainingjob.resnet")
    job = replace(job, decision=replace(job.decision, exclusions=hosts(4)))
    assert missing(job, NO_NODES) == Missing(shortfall="3 of 6 requested hosts are in use. n4: excluded.")
    assert missing(running_job(name="ml/trainingjob.resnet"), NO_NODES) == NOTHING


def test_people_and_drills_that_take_a_host_are_named_as_such() -> None:
    drained = replace(notice(1), source=OPERATOR, message="ann: new kernel")
    present = replace(nodes(hosts(3)), noticed=noticed(drained, replace(notice(2), source=SIMULATED)))
    present = replace(present, unknown={N1: (), N2: (), N3: ()}.get)
    found = missing(waiting_job(spec(2, 3), first(3)), present)
    assert {one.host: one.why for one in found.hosts} == {N1: "drained by ann", N2: "noticed by a drill"}
