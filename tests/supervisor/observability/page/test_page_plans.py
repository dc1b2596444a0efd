"""What the page says that a job will do about a reclaim that is under way."""

from dataclasses import replace

import msgspec
import pytest

from supervisor.domain.ids import Host
from supervisor.domain.notice import NoticeClass, SubjectKind
from supervisor.observability.page.contents import contents
from supervisor.observability.page.plans import ReclaimPlans
from supervisor.observability.status_view import StatusSnapshot, status_view
from supervisor.observability.views import ProspectView
from tests.supervisor.decide.decide_builders import notice, noticed, running_job, spec, suspended_job
from tests.supervisor.observability.page.console_world import reclaimed, rows_of, until_seen
from tests.supervisor.observability.page.page_world import viewing
from tests.supervisor.observability.page.test_page_formatting import seen
from tests.testkit.serving import Served


def _plan(snapshot: StatusSnapshot, **changes: object) -> str:
    view = status_view(snapshot)
    [job], [about] = view.jobs, view.notices
    job = msgspec.structs.replace(job, **changes)
    return ReclaimPlans(job).about(about).what


def _with(job: object, *notices: object, **changes: object) -> StatusSnapshot:
    now = seen()
    facts = replace(now.jobs[0], job=job, noticed=noticed(*notices))  # type: ignore[arg-type]
    return replace(now, jobs=(facts,), notices=tuple(notices[:1]), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("least", "changes", "plan"),
    [
        (3, {}, "shrinks to 5 workers"),
        (6, {}, "saves and stops, because 5 workers would remain of at least 6"),
        (3, {"fixed_hosts": True}, "saves and stops, because its run cannot go on without a host"),
        (3, {"on_loss": "hold"}, "saves and stops, because 5 workers would remain of at least 3"),
        (2, {"worker_multiple": 2}, "shrinks to 4 workers"),
        (3, {"phase": "Queued"}, "nothing to do: it is Queued, and does not start there while the notice stands"),
        (3, {"phase": "Finished"}, "nothing to do: it has ended"),
        (3, {"phase": "Stopping"}, "saves and stops"),
    ],
)
def test_a_job_shrinks_or_stops_as_its_rules_say(least: int, changes: dict[str, object], plan: str) -> None:
    assert _plan(_with(running_job(spec(least)), notice(3)), **changes) == plan


def test_hosts_with_another_notice_do_not_remain() -> None:
    assert _plan(_with(running_job(spec(3)), notice(3), notice(4), notice(5))) == "shrinks to 3 workers"
    assert _plan(_with(running_job(spec(4)), notice(3), notice(4), notice(5))).startswith("saves and stops")


def test_a_host_whose_notice_the_processes_do_not_know_yet_goes_all_the_same() -> None:
    now = _with(running_job(spec(6)), notice(3))
    unknown = replace(now, jobs=(replace(now.jobs[0], noticed={}),))
    assert _plan(unknown) == "saves and stops, because 5 workers would remain of at least 6"


def test_a_host_that_is_left_out_already_changes_nothing_more() -> None:
    job = running_job()
    left = replace(job, decision=replace(job.decision, exclusions=frozenset({Host("n3")})))
    assert _plan(_with(left, notice(3))) == "goes on with 5 workers, without what goes"


def test_the_launchers_host_stops_the_job() -> None:
    job = running_job(replace(spec(), launcher_host=Host("n3")))
    assert _plan(_with(job, notice(3))) == "saves and stops, because its launcher is there"


def test_a_notice_that_is_not_acted_on_changes_nothing_yet() -> None:
    hint = replace(notice(3, left=None), notice_class=NoticeClass.HINT)
    later = replace(notice(3, left=1e6), notice_class=NoticeClass.SCHEDULED)
    assert _plan(_with(running_job(), hint)) == "nothing to do yet: nobody says when it goes"
    assert _plan(_with(running_job(), later)) == "nothing to do yet: it is not due yet"


def test_a_suspended_job_does_nothing() -> None:
    plan = _plan(_with(suspended_job(), notice(3)))
    assert plan == "nothing to do: it is Suspended, and does not start there while the notice stands"


def test_the_plan_has_the_time_of_what_comes_next() -> None:
    view = status_view(_with(running_job(), notice(3)))
    job = msgspec.structs.replace(view.jobs[0], prospects=[ProspectView("x"), ProspectView("y", 4.0)])
    assert ReclaimPlans(job).about(view.notices[0]).seconds == 4.0


def test_the_overview_has_the_plans_of_ten_jobs_at_most() -> None:
    now = seen(3, jobs=12)
    [row] = contents(status_view(now)).reclaims
    assert [plan.job for plan in row.plans] == [f"job-{number:03}" for number in range(10)]
    assert len(row.jobs) == 12


def test_a_notice_of_a_pod_is_about_the_host_that_has_it() -> None:
    view = status_view(_with(running_job(spec(3)), notice(3)))
    about = msgspec.structs.replace(view.notices[0], subject="team/w-3", kind=SubjectKind.POD)
    assert ReclaimPlans(view.jobs[0]).about(about).what == "shrinks to 5 workers"
    nowhere = msgspec.structs.replace(about, id="other")
    assert ReclaimPlans(view.jobs[0]).about(nowhere).what == "nothing to do: it does not use it"


async def test_the_overview_says_what_each_job_does(served: Served) -> None:
    await reclaimed(served)
    await until_seen(served, "/", "train goes on with 2 workers, without what goes.")
    agents = await served.peers.agents(["n9"])
    await agents["n9"].notices("n9", left=60.0)
    await until_seen(served, "/", "none: nothing to do")
    assert any(row.startswith("node n9") for row in rows_of(await viewing(served)))
