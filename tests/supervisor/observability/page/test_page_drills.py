"""The page of drills: which are under way, what the past ones proved, and how to hold one."""

from dataclasses import replace

from supervisor.domain.notice import SIMULATED
from supervisor.observability.page.drill_contents import Drill, DrillsContents, drills_of, proofs, with_jobs
from supervisor.observability.page.rendering import PageRenderer
from supervisor.observability.status_view import StatusPage, status_view
from supervisor.observability.views import HistoryEntryView, HistoryView
from tests.supervisor.decide.decide_builders import notice
from tests.supervisor.observability.page.console_world import links_of, page_of, rows_of, until_seen
from tests.supervisor.observability.page.page_world import VIEWING
from tests.supervisor.observability.page.test_page_formatting import seen
from tests.testkit.serving import Served


def _notice(at: float, node: str, what: str = "noticed") -> HistoryEntryView:
    return HistoryEntryView(at=at, subject=f"node/{node}", what=what, text="Drill: x", source="simulated", drill=True)


def _job(at: float, what: str, job: str = "train", *nodes: str, drill: bool = False) -> HistoryEntryView:
    concerns = tuple(f"node/{node}" for node in nodes)
    text = f"{what}. Newly excluded: 1." if what == "Shrinking" else f"{what}."
    return HistoryEntryView(at=at, subject=f"job/{job}", what=what, text=text, concerns=concerns, drill=drill)


def test_a_job_that_shrinks_already_is_told_when_it_leaves_out_further_hosts() -> None:
    """Not when it begins to wait for further notices."""
    waiting = HistoryEntryView(
        at=101.0, subject="job/train", what="Shrinking", text="Drill: waiting.", concerns=("node/n1",), drill=True
    )
    found = with_jobs(_DRILL, [waiting, _job(103.0, "Shrinking", "train", "n1", drill=True)])
    (job,) = found.jobs or ()
    assert (job.at, job.told) == (103.0, 3.0)


def test_notices_that_come_together_are_one_drill() -> None:
    entries = [
        _notice(1.0, "unbegun", "withdrawn"),
        _notice(100.0, "n1"),
        _notice(109.0, "n2"),
        _notice(111.0, "n3"),
        _notice(200.0, "n1", "withdrawn"),
        _notice(210.0, "n2", "withdrawn"),
    ]
    shown = drills_of(HistoryView(since=0.0, entries=entries), [replace(notice(3, seen=111.0), source=SIMULATED)])
    assert [(each.began_at, each.ended_at, each.subjects, each.is_lost) for each in shown.drills] == [
        (111.0, None, ["node/n3"], False),
        (100.0, 210.0, ["node/n1", "node/n2"], False),
    ]


def test_a_drill_that_an_earlier_supervisor_held_is_not_said_to_go_on() -> None:
    """Without a shared database its end is in the record of another supervisor."""
    [drill] = drills_of(HistoryView(since=0.0, entries=[_notice(100.0, "n1")]), []).drills
    assert (drill.ended_at, drill.is_lost) == (None, True)
    told = with_jobs(drill, [_job(101.0, "Stopping", "train", "n1", drill=True), _job(105.0, "Checkpoint")])
    [job] = told.jobs or []
    assert proofs(told, job) == {"It answered; whether in time is not known.": True}
    page = PageRenderer().render(
        "drills.html",
        root="../",
        session=VIEWING,
        view=status_view(seen(), StatusPage()),
        more_present=0,
        shown=DrillsContents(drills=[told]),
        proofs=proofs,
        unread="",
    )
    assert "not known: an earlier supervisor held it" in page
    assert "not over" not in page


_DRILL = Drill(began_at=100.0, ended_at=160.0, subjects=["node/n1"])


def test_a_drill_proves_that_a_job_answered_in_time_or_too_late() -> None:
    for at, sentence, good in ((130.0, "It answered in time.", True), (161.0, "It answered too late.", False)):
        found = with_jobs(
            _DRILL,
            [
                _job(100.5, "Stopping", "train", "n1", drill=True),
                _job(at, "Checkpoint"),
                _job(at + 1, "Suspended"),
                _job(170.0, "Running"),
                _job(180.0, "Suspended"),
            ],
        )
        [job] = found.jobs or []
        assert (job.told, job.answered, job.suspended, job.back) == (0.5, at - 100.0, at - 99.0, 70.0)
        assert proofs(found, job) == {sentence: good}


def test_no_answer_is_a_bad_proof_and_going_on_a_good_one() -> None:
    stopped = with_jobs(_DRILL, [_job(101.0, "Stopping", "train", "n1", drill=True)])
    shrunk = with_jobs(_DRILL, [_job(101.0, "Shrinking", "train", "n1", drill=True)])
    assert [proofs(each, (each.jobs or [])[0]) for each in (stopped, shrunk)] == [
        {"No rank answered.": False},
        {"It went on without the hosts.": True},
    ]


def test_what_is_of_another_cause_is_not_the_drills() -> None:
    entries = [
        _job(101.0, "Stopping", "real", "n1"),
        _job(101.0, "Stopping", "elsewhere", "n9", drill=True),
        _job(99.0, "Shrinking", "before", "n1", drill=True),
    ]
    assert with_jobs(_DRILL, entries).jobs == []


def test_a_second_notice_of_a_drill_may_stop_a_job_that_went_on() -> None:
    entries = [
        _job(101.0, "Shrinking", "train", "n1", drill=True),
        _job(103.0, "Stopping", "train", "n1", drill=True),
    ]
    [job] = with_jobs(_DRILL, entries).jobs or []
    assert (job.phase, job.told) == ("Stopping", 3.0)


async def test_a_drill_is_shown_while_it_goes_on_and_afterwards(served: Served) -> None:
    await served.peers.agents(["n1", "n2"])
    _, order = await served.peers.running("train", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", rank=0)
    operator = served.peers.tokens.operator("ann")
    asked = {"node": "n2", "lead_seconds": 120}
    assert (await served.peers.post("/v1/drills", operator, asked)).status == 200
    page = await until_seen(served, "/status/drills", "train 0.")
    assert "node n2 1 min" in page.seen
    await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
    page = await until_seen(served, "/status/drills", "It answered in time. Rank 0 saved a checkpoint at step 41.")
    assert (await served.peers.post("/v1/drills/end", operator, {"node": "n2"})).status == 200
    page = await until_seen(served, "/status/drills", "before the end of the drill")
    assert "Under way None." in page.seen
    assert "job-supervisor simulate NODE --lead 120" in page.seen
    [link] = [link for link in links_of(page, "/status/drills") if "/groups/" in link]
    assert "Decision about train drill" in (await page_of(served, link)).seen
    assert len(rows_of(page)) == 1
