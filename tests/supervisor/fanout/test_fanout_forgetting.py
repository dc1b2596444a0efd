"""What is kept beside the store is dropped together with the stored object."""

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.decide.directives import order_for
from supervisor.decide.situation import RankZero
from supervisor.domain.ids import Host
from supervisor.domain.order import Worker
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.ingest.agent_registry import AgentRegistry, AgentState
from tests.supervisor.decide.decide_builders import running_job
from tests.supervisor.fanout.fanout_streams import FakeStream


class _Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_nodes_that_have_long_been_silent_are_forgotten() -> None:
    """Only those: one that is back since, or fell silent a moment ago, is still there."""
    time = _Time()
    agents = AgentRegistry(lambda: None, time.now)
    for node in ("gone", "back", "here"):
        agents.connect(_view(node), node)
    for node in ("gone", "back"):
        agents.disconnect(Host(node), node)
    agents.connect(_view("back"), "again")
    time.seconds = 50.0
    agents.connect(_view("recent"), "recent")
    agents.disconnect(Host("recent"), "recent")
    agents.forget(before=50.0)
    assert set(agents.by_node) == {"back", "here", "recent"}
    agents.disconnect(Host("back"), "again")
    assert agents.silent_since(Host("back")) == 50.0


def test_launchers_of_jobs_that_are_forgotten_are_too() -> None:
    """A launcher of a known job still owns its name for a while."""
    time = _Time()
    launchers = Launchers(lambda *_: "token", time.now)
    time.seconds = 50.0
    for name in ("known", "other"):
        job, stream = running_job(name=name), FakeStream()
        launchers.attach(job, order_for(job), stream)
        launchers.detach(job.id, stream)
    launchers.forget_others({running_job(name="known").id})
    assert launchers.last_seen(running_job(name="known").id) == 50.0
    assert launchers.last_seen(running_job(name="other").id) == 0.0


def test_rank_zero_of_jobs_that_are_forgotten_is_too() -> None:
    """One of a known job has been missing since it was last seen."""
    time = _Time()
    processes = Processes(lambda _job: None, time.now, Bulkhead(Clock()), lambda _job: None)
    for name in ("known", "other"):
        worker, stream = Worker("process", running_job(name=name).id, 1, Host("n1"), 0), FakeStream()
        processes.attach(worker, stream)
        assert processes.rank_zero(worker.job, 1).connected
        time.seconds = 50.0
        processes.detach(worker, stream)
        assert processes.rank_zero(worker.job, 1) == RankZero(connected=False, since=50.0)
    processes.forget_others({running_job(name="known").id})
    assert processes.rank_zero(running_job(name="known").id, 1).since == 50.0
    assert processes.rank_zero(running_job(name="other").id, 1).since == 0.0


def _view(node: str) -> AgentState:
    return AgentState(node=Host(node), uid=f"uid-{node}", session=1, connected=True)
