"""Notice metrics count every outcome once, with a bounded number of labels."""

from dataclasses import replace
from itertools import pairwise

from prometheus_client import CollectorRegistry

from servicekit.metrics import LabelLimiter, registry
from supervisor.domain.capacity import Machine
from supervisor.domain.ids import Source
from supervisor.domain.notice import NoticeState, ReclaimNotice, Subject, SubjectKind
from supervisor.observability.journal import NoticeChanged
from supervisor.observability.metrics.notices import NoticeMetrics
from supervisor.observability.metrics.pools import PoolLabels
from tests.supervisor.decide.decide_builders import T0, notice


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    [family] = [each for each in registry.collect() if each.name == "job_supervisor_notices"]
    return {sample.labels["outcome"]: sample.value for sample in family.samples}


def test_an_episode_is_received_and_ends_once() -> None:
    """Drifting deadlines and later sessions are no news; an announcement after the end is another episode."""
    metrics = NoticeMetrics(found := registry(), LabelLimiter(8), PoolLabels())
    first = notice(1, left=120.0)
    drifted = replace(first, deadline=T0 + 130.0, revision=2)
    withdrawn = replace(drifted, state=NoticeState.WITHDRAWN, revision=3)
    told_again = replace(withdrawn, session=2)
    second = replace(first, episode=2, session=2, deadline=None)
    gone = replace(second, state=NoticeState.GONE)
    story: list[ReclaimNotice | None] = [None, first, drifted, withdrawn, told_again, second, gone]
    for before, after in pairwise(story):
        assert after is not None
        metrics.on_change(NoticeChanged(before, after, T0))
    metrics.on_report_refused(first.source)
    assert outcomes(found) == {"received": 2, "withdrawn": 1, "gone": 1, "refused": 1}
    assert (
        found.get_sample_value("job_supervisor_notice_lead_seconds_sum", {"source": "metadata", "class": "sudden"})
        == 120
    )
    unknown = {"source": "metadata", "cloud": "unknown", "zone": "unknown", "instance_type": "unknown"}
    assert found.get_sample_value("job_supervisor_reclaims_total", unknown) == 2


def test_what_had_expired_when_it_came_was_no_reclaim() -> None:
    metrics = NoticeMetrics(found := registry(), LabelLimiter(8), PoolLabels())
    metrics.on_change(NoticeChanged(None, notice(1, state=NoticeState.EXPIRED), T0))
    assert outcomes(found) == {"expired": 1}


def test_labels_stay_few() -> None:
    """Whatever names agents make up, and however many kinds of nodes there are."""
    machines = iter(Machine(zone=f"zone-{number}", instance_type=f"type-{number}") for number in range(1000))
    metrics = NoticeMetrics(found := registry(), LabelLimiter(4), PoolLabels())
    metrics.machine = lambda _subject: next(machines)
    for number in range(1000):
        about = Subject(SubjectKind.POD, f"n{number}", f"uid-{number}")
        made_up = replace(notice(1), source=Source(f"source-{number}"), subject=about)
        metrics.on_change(NoticeChanged(None, made_up, T0))
    [reclaims] = [family for family in found.collect() if family.name == "job_supervisor_reclaims"]
    assert sum(sample.value for sample in reclaims.samples) == 1000
    assert len(reclaims.samples) == 4 + 196 + 1
    assert len(outcomes(found)) == 1
    assert found.get_sample_value("job_supervisor_notices_total", {"source": "other", "outcome": "received"}) == 996
