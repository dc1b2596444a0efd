"""What a waiting job lacks is said of each host, and agrees with what is granted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from supervisor.decide.grant import grants
from supervisor.decide.missing import NOTHING, Lack, Nodes, missing
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Result, SupervisedJob
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
) -> Nodes:
    known = {**dict.fromkeys(clear, ()), **{Host(f"n{number}"): () for number in noticed_hosts}, **(unknown or {})}
    return Nodes(
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
        N2: (Lack.NOTICE, "it has a notice of metadata"),
        N3: (Lack.SOURCE_UNKNOWN, "its source file and aws has not answered whether it will be reclaimed"),
        N4: (Lack.SOURCE_UNKNOWN, "its agent has not answered whether it will be reclaimed"),
        N5: (Lack.IN_USE, "job other uses it"),
    }
    assert found.summary.startswith(
        "1 of 6 listed hosts can be used, and 4 are needed. n1: no agent is connected. n2: it"
    )
    assert "n5: another job uses it." in found.summary
    assert "other uses" not in found.summary


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
    assert found.summary.endswith("The launcher's own host n9 has a notice of metadata.")


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
