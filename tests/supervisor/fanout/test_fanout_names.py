"""A job that takes the name of an earlier one begins with nothing that was known of that one.

Runs and generations of the new job begin at 1 again, also while the processes of the earlier one still speak. A job of
a cluster that is released and registered again keeps even its uid.
"""

from dataclasses import replace

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.decide.directives import JobDirectives, order_for
from supervisor.decide.ranks import NO_RANKS
from supervisor.decide.situation import NO_MEMBERS, Member
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Worker
from supervisor.fanout.launchers import UNKNOWN, Launchers
from supervisor.fanout.members import MemberId, MemberStreams
from supervisor.fanout.processes import REPLACED, ByJob, Processes
from supervisor.fanout.ranks import Measurements, RankStates, Save, Saves, Statement
from tests.supervisor.decide.decide_builders import POLICY, T0, noticed, running_job
from tests.supervisor.fanout.fanout_streams import FakeStream

AGREES = Statement(purposes=frozenset(Purpose), world_size=2)
HOST = Host("n1")
EARLIER_RUN = 3
"""The earlier job has reached this run, the new one has its first."""


class Names:
    """An earlier job and a new one of its name, and everything that the fan-out remembers."""

    def __init__(self, earlier: SupervisedJob, new: SupervisedJob) -> None:
        self.earlier, self.new = earlier, new
        self.present: SupervisedJob | None = earlier
        self.now = T0
        self.asked: list[JobName] = []
        bulkhead = Bulkhead(Clock())
        self.processes = Processes(self._directives, lambda: self.now, bulkhead, self.asked.append)
        self.ranks = RankStates(self.processes.workers, self._agreement, self.asked.append)
        self.members = MemberStreams(lambda _name: self.present, self.asked.append, bulkhead)
        self.launchers = Launchers(lambda *_: "token", lambda: self.now)
        self.saves = Saves()

    def _directives(self, _name: JobName) -> JobDirectives | None:
        return None if self.present is None else JobDirectives.of(self.present, noticed(), POLICY)

    def _agreement(self, job: JobId) -> Agreement | None:
        return None if self.present is None or self.present.id != job else self.present.decision.agreement

    def recreate(self) -> None:
        """The job is deleted and made anew, and its name's streams are refreshed as after each change of a job."""
        self.present = self.new
        self.processes.refresh([self.new.name])
        self.members.refresh([self.new.name])
        self.launchers.dismiss_others({self.new.name: self.new})

    def process(self, job: SupervisedJob, rank: int = 0) -> tuple[Worker, FakeStream]:
        worker, stream = Worker(f"p{rank}", job.id, job.observed.run, HOST, rank), FakeStream()
        self.processes.attach(worker, stream)
        self.ranks.put_statement(worker, AGREES)
        return worker, stream

    def member(self, job: SupervisedJob, name: str = "member") -> tuple[MemberId, FakeStream]:
        sender, stream = MemberId(job.id, job.observed.run, HOST, name), FakeStream()
        self.members.attach(sender, _member(name), stream)
        return sender, stream


def _member(name: str, *, ended: bool = False) -> Member:
    return Member(member=name, since=T0, processes=1, address="n1", ended=ended)


def _at_run(job: SupervisedJob, run: int) -> SupervisedJob:
    return replace(
        job, observed=replace(job.observed, run=run), decision=replace(job.decision, run=run, generation=run * 10)
    )


def _standalone() -> tuple[SupervisedJob, SupervisedJob]:
    """Each registration of a launcher has a uid of its own."""
    return replace(running_job(), uid="earlier"), replace(running_job(), uid="new")


def _recreated(kind: str) -> tuple[SupervisedJob, SupervisedJob]:
    """A job of a cluster that was deleted and created again."""
    earlier, new = _standalone()
    name = JobName(f"default/{kind}.job")
    return replace(earlier, name=name), replace(new, name=name)


def _released(kind: str) -> tuple[SupervisedJob, SupervisedJob]:
    """A job of a cluster that a person suspended, so that it was released, and then resumed."""
    earlier = replace(running_job(), name=JobName(f"default/{kind}.job"))
    return earlier, replace(earlier, observed=replace(earlier.observed, registered_at=T0 + 60))


@pytest.fixture(
    params=[
        _standalone(),
        *(make(kind) for make in (_recreated, _released) for kind in ("trainingjob", "mpijob", "jobset", "batchjob")),
    ],
    ids=lambda jobs: f"{jobs[1].name} {'released' if jobs[0].uid == jobs[1].uid else 'recreated'}",
)
async def names(request: pytest.FixtureRequest) -> Names:
    earlier, new = request.param
    return Names(_at_run(earlier, EARLIER_RUN), new)


async def test_the_members_of_the_new_job_count_and_the_earlier_ones_do_not(names: Names) -> None:
    """Of torchrun's agents: otherwise the new job would never get a round."""
    old, stream = names.member(names.earlier)
    assert names.members.report(old, _member("member", ended=True), 5)
    names.recreate()
    assert stream.goodbye == REPLACED
    assert names.members.of(names.new.id, 1) is NO_MEMBERS
    fresh, own = names.member(names.new)
    found = names.members.of(names.new.id, 1)
    assert (list(found.by_host), found.have_ended) == ([HOST], False)
    assert names.members.report(fresh, _member("member"), 1), "its revisions begin anew"
    assert not names.members.report(old, _member("member", ended=True), 6)
    assert not names.members.of(names.new.id, 1).have_ended
    assert own.goodbye is None
    names.members.finish("enough")


async def test_a_late_stream_of_an_earlier_member_ends_at_once(names: Names) -> None:
    """Its job was replaced while the head of its response was sent; the new member of its host stays."""
    names.recreate()
    _, own = names.member(names.new)
    _, late = names.member(names.earlier, "late")
    assert (own.goodbye, late.goodbye) == (None, REPLACED)
    assert [each.member for each in names.members.of(names.new.id, 1).by_host.values()] == ["member"]
    names.members.finish("enough")


async def test_the_ranks_of_the_new_job_agree_and_the_earlier_ones_are_not_asked(names: Names) -> None:
    """Otherwise rank 0 alone would be told to stop, and would hang in a save that needs all ranks."""
    old, _ = names.process(names.earlier)
    names.ranks.acknowledged(old, 7)
    names.recreate()
    assert names.ranks.of(names.new.id, 1) is NO_RANKS
    workers = [names.process(names.new, rank)[0] for rank in (0, 1)]
    found = names.ranks.of(names.new.id, 1)
    assert found.agree_to(Purpose.STOP)
    assert not found.have_acknowledged(7)
    answer = StepAnswer(epoch=1, at_step=None, kind=AnswerKind.DECLINED, step=90, at=T0)
    names.ranks.answered(old, answer, Measurements())
    names.ranks.put_statement(old, Statement(purposes=frozenset()))
    assert names.ranks.of(names.new.id, 1) == found
    assert [state.process for state in found.states] == [each.process for each in workers]


async def test_the_answers_of_earlier_ranks_complete_no_agreement_of_the_new_job(names: Names) -> None:
    names.present = names.earlier
    old, _ = names.process(names.earlier)
    asked = Agreement(epoch=1, purpose=Purpose.STOP, run=1, since=T0, began=T0)
    names.new = replace(names.new, decision=replace(names.new.decision, agreement=asked))
    names.recreate()
    names.asked.clear()
    names.ranks.answered(
        old, StepAnswer(epoch=1, at_step=None, kind=AnswerKind.ACCEPTED, step=90, at=T0), Measurements()
    )
    assert not names.asked


async def test_rank_zero_of_the_earlier_job_is_not_that_of_the_new_one(names: Names) -> None:
    old, stream = names.process(names.earlier)
    assert names.processes.rank_zero(names.earlier.id, EARLIER_RUN).connected
    names.recreate()
    assert stream.goodbye == REPLACED
    assert not names.processes.rank_zero(names.new.id, 1).connected
    assert names.processes.hosts(names.new.id) == frozenset()
    worker, own = names.process(names.new)
    assert names.processes.rank_zero(names.new.id, 1).connected
    names.processes.detach(old, stream)  # The end of its stream is seen later.
    assert names.processes.update(replace(old, rank=None), 99)
    assert names.processes.workers(names.new.id) == [worker]
    assert own.goodbye is None


async def test_a_late_stream_of_an_earlier_process_ends_without_a_directive_of_the_new_job(names: Names) -> None:
    """Its process may have the id of one of the new job."""
    names.recreate()
    _, own = names.process(names.new)
    _, late = names.process(names.earlier)
    assert (late.goodbye, late.lines, own.goodbye) == (REPLACED, [], None)
    assert len(names.processes.workers(names.new.id)) == 1


async def test_the_streams_of_a_job_that_is_gone_stay_until_another_has_its_name(names: Names) -> None:
    """It may be registered again in a moment; nothing is sent meanwhile."""
    _, stream = names.process(names.earlier)
    names.present = None
    names.processes.refresh([names.earlier.name])
    assert (stream.goodbye, len(stream.lines)) == (None, 1)
    names.recreate()
    assert stream.goodbye == REPLACED


async def test_the_checkpoints_of_the_earlier_job_are_not_those_of_the_new_one(names: Names) -> None:
    old, _ = names.process(names.earlier)
    names.saves.saved(old, 20.0, 100.0)
    names.recreate()
    assert names.saves.last.get(names.new.id) is None
    worker, _ = names.process(names.new)
    names.saves.saved(worker, 5.0, 200.0)
    names.saves.saved(old, 20.0, 250.0)
    assert names.saves.last.get(names.new.id) == Save(run=1, at=200.0, process=worker.process, seconds=5.0)


async def test_the_launcher_of_the_earlier_job_gets_no_order_of_the_new_one() -> None:
    """Nor does it keep the name alive for a launcher that never connected."""
    names = Names(*_standalone())
    stream = FakeStream()
    names.launchers.attach(names.earlier, order_for(names.earlier), stream)
    names.now = T0 + 50
    names.recreate()
    names.launchers.publish(names.new, order_for(names.new))
    assert (stream.goodbye, len(stream.lines)) == (UNKNOWN, 1)
    assert names.launchers.last_seen(names.new.id) == T0
    own = FakeStream()
    names.launchers.attach(names.new, order_for(names.new), own)
    names.launchers.detach(names.earlier.id, stream)
    names.now = T0 + 90
    assert names.launchers.last_seen(names.new.id) == T0 + 90
    assert own.goodbye is None


def test_values_are_found_by_job_and_by_name() -> None:
    """And nothing is left of a name once its last registration is removed."""
    values: ByJob[str] = ByJob()
    earlier, new = (job.id for job in _standalone())
    values[earlier], values[new] = "earlier", "new"
    assert (values.get(earlier), values.get(new), list(values.named(new.name))) == ("earlier", "new", [earlier, new])
    assert values.pop(earlier) == "earlier"
    assert (values.pop(earlier), values.get(earlier), list(values.named(new.name))) == (None, None, [new])
    assert (values.pop(new), list(values), list(values.values()), values.named(new.name)) == ("new", [], [], ())
