"""One reclaim that a job cannot outlive, by how much time its notice leaves."""

from itertools import product

from simulator.cloud.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice
from simulator.cloud.trace import Node
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.supervised import supervised

LEADS = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
CHECKPOINTS = (1.0, 5.0, 10.0, 30.0, 60.0)
STEPS = (0.5, 2.0, 10.0, 30.0)
_NODES = tuple(Node(f"node-{number}") for number in range(4))
_FIRST, _SECOND, _END = 300.0, 900.0, 1500.0
_AWAY_SECONDS = 60.0


def all_costs() -> list[tuple[float, GoodputCosts]]:
    """Every lead with the costs of every job."""
    return [
        (lead, GoodputCosts(step=step, checkpoint=checkpoint))
        for lead, checkpoint, step in product(LEADS, CHECKPOINTS, STEPS)
    ]


def slack(lead: float, costs: GoodputCosts) -> float:
    """The seconds that a notice leaves beyond the present step and a checkpoint."""
    return lead - costs.step - costs.checkpoint


def at_once(lead: float, costs: GoodputCosts, seed: int) -> Score:
    """The first stop of a job, none of whose checkpoints was timed."""
    return supervised(_case(lead, reclaims=1), costs, seed)


def just_in_time(lead: float, costs: GoodputCosts, seed: int) -> Score:
    """The second stop of that job; its first notice left time for everything."""
    return supervised(_case(lead, reclaims=2), costs, seed)


def _case(lead: float, reclaims: int) -> GoodputCase:
    first = _reclaim(_FIRST, lead if reclaims == 1 else max(LEADS))
    back = AddNode(_FIRST + max(LEADS) + _AWAY_SECONDS, _NODES[0])
    steps = first if reclaims == 1 else (*first, back, *_reclaim(_SECOND, lead))
    schedule = ReclaimSchedule(_NODES, steps, _END)
    return GoodputCase(name="cliff", schedule=schedule, least=len(_NODES), most=len(_NODES))


def _reclaim(at: float, lead: float) -> tuple[ScheduledNotice, KillNode]:
    return ScheduledNotice(at=at, node=_NODES[0], lead=lead, group="group"), KillNode(at + lead, _NODES[0])
