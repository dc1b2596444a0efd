"""How much of reclaimed capacity each way to handle reclaims turns into training, in simulated time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.goodput import tables
from benchmarks.goodput.real import compared
from benchmarks.goodput.tables import Simulated, simulated
from benchmarks.goodput.traces import cases
from benchmarks.results import Row, ScenarioOutcome
from simulator import guarantees
from simulator.runner import ReplayScenario
from simulator.scenarios import ScenarioOptions, ScenarioPart, scenarios
from supervisor.goodput.model import GoodputCosts
from supervisor.goodput.policies import with_published_costs

SEED = 1

METHOD = """\
Simulated time, without processes; the last of these tables compares the simulation with real ones. *Goodput* is the
useful worker-steps (each step, times its workers) by the possible ones: every node trains from its arrival until it is
gone, while there are as many as the job needs.

- **Capacity**: the recording of `make replay`, unshortened, and 10 hours of nodes that are reclaimed at a fixed rate in
  groups of 1, 1, 2 and 4, with a lead of 120 s, and replaced 6 minutes later on average. The job has a worker on each
  node and needs 10 of the recording's up to 24 nodes, otherwise 13 of 16.
- **Costs**, which are assumptions and the same for all: a step takes 1 s with any number of workers, a checkpoint 5 s,
  a restart of all processes 30 s, a change of hosts within the same processes 2 s. Nobody trains meanwhile. The first
  start costs nothing, and the process of a new node is ready when the node arrives, except for torchrun in process.
- **Checkpoints** every 60 s and 600 s: nobody hears of notices. The loss of a node breaks the job, which learns of it
  at once and restarts from the last checkpoint. **Keep-alive**: as with 60 s, but the job learns of it after 15 s.
- **SIGTERM**: each node asks for its notice every 2 s. After the first SIGTERM all processes save and restart without
  the nodes that have been told. This policy and those above take new nodes in by another restart, once these have
  waited as many node-seconds as it costs.
- **Supervisor**: the functions of `supervisor/decide` decide, with their default settings. An agent sees a notice
  within 1 s, a message takes 50 ms, a launcher reads its changed host list within 1 s, and the end of a run takes 2 s.
  The ranks agree on the step of a stop; the first stop is at once, because no checkpoint has been timed. If the job
  goes on without the noticed nodes, they train until 16 s before the first of them goes: a margin of 5 s and 11 steps.
  The job takes new nodes in 2 s after their arrival. If a node goes while it trains, 10 steps are lost, which is how
  often the processes keep their state in memory. That is a job of elastic Horovod. **Torchrun in process**: a job of
  `kubeai.torch` with the whole state in each process. Its ranks agree on a step and enter the next round; they train
  until 14 s before the first of the noticed nodes goes: the margin, 4 s and 5 steps. The processes of a new node start
  for 30 s while the others train, and may join in the round in which others leave. **By restarts**: a job of torchrun
  whose script cannot change within its processes. Its ranks agree on a step, save, and are restarted for the next
  round; they train until 19 s before the first of the noticed nodes goes: the margin, a checkpoint, 4 s and 5 steps.
  New nodes join with a change for one that leaves, or when they have waited for as many node-seconds as a restart
  costs, which the processes measure. **By warm restarts**: the same with kubeai-python, whose restarts for another
  round are assumed to take 4.5 s, 15 % of the others, as measured with torchrun. The start of all processes after a
  stop takes 30 s.
- **Oracle**: it knows every arrival and reclaim from the beginning, uses a node until it is gone, and changes hosts,
  stops and starts at the best moments (exact, by dynamic programming), at the same costs.

SIGTERM, supervisor and oracle save only before a restart or a stop. A checkpoint every 600 s, against failures that
nobody announces, would cost each of them 0.8 %."""

STEPS_LOST = """\
Steps of the job that were made again after a return to a checkpoint, or to the state in memory, in the simulations
above."""

RESTARTS = """\
Restarts of all processes after the first start, for each group of nodes that went at the same instant. Those for new
nodes count as well."""

UNUSED = """\
The possible worker-steps that the supervisor of the simulations above did not make, by reason. *Hosts left before they
went*: a job leaves the hosts of all pending notices in one change, before the first of them goes, and they idle until
they are gone."""

VALIDATION = """\
The same capacity twice: in the simulation, and with the real supervisor, agents, launcher and training processes of
`make replay`, sixteen times as fast as the trace. Step and checkpoint are those of the real run, a change of hosts
costs nothing, and a restart is assumed to take 2.5 s, with the start of a new node's agent. At that speed a second more
of it costs about two points, and goodput is low because capacity lasts hardly longer than a stop and a start take."""

BEHIND = """\
The supervisor of the simulations above beside two oracles. The first one is that of the first table: it leaves hosts
out long before their notice. The second one, *by notices*, learns of a reclaim by its notice, as every policy does. So
after each of its changes it trains on all hosts that have none, and it changes again before the first of these goes. It
still knows when notices and hosts will come, and learns at once what an agent sees within a second and ranks agree on
within a few. *Foresight* is what lies between the two: who takes in every host without a notice cannot have it."""

SPENT = """\
The possible worker-steps that the supervisor of the simulations above did not make by restarts, by reason. A restart
for hosts that leave also takes in those that wait. *Hosts not yet taken in* wait until they pay for a restart or
another host leaves. *Stops and starts*: the job had too few hosts, or started again after that."""

PUBLISHED_COSTS = """\
The same simulation with costs that users of Megatron and HyperPod report for large jobs: a save of 60 s and a restart
of 47 s at the low end, 240 s and 120 s at the high end. Warm restarts are again assumed to take 15 % of a restart,
although part of a published one is not the start of processes. A change in process still takes 2 s. Jobs of 500 nodes
are left out: 100 nodes that are reclaimed after 4 h have as many groups as 500 after 24 h.

All saves stop all workers. Where a save takes longer than a notice, SIGTERM and the supervisor also save without one,
at Young's interval of the case: the square root of 2 x save x time between groups. A save that a reclaim interrupts is
lost. The oracles never save without a notice, as they know when to save before it. In process, the supervisor saves as
often as the others, although it returns to a checkpoint only after a stop; these saves are most of what it does not use
there.

**Where a save fits into the notice**, by restarts the supervisor is ahead of SIGTERM in four of five rows, and 0.2
points behind in one. **Where it does not fit**, a notice is hardly of use to a job that goes by restarts: the
supervisor is behind SIGTERM in six of seven rows, by up to 2.3 points, and 15 points or more behind both oracles. Such
a job should save faster, or go on in process."""

PUBLISHED: Mapping[str, tuple[float, float]] = {"60 s, 47 s": (60.0, 47.0), "240 s, 120 s": (240.0, 120.0)}
"""The seconds of a save and of a restart."""
_MOST_NODES = 100
"""Larger jobs are not simulated with these costs."""

_REAL_SEED, _REAL_LEAD = 2, 120.0


async def run(root: Path, *, short: bool) -> tuple[ScenarioOutcome, ...]:
    """Simulate all policies in all cases, and play one case with real processes."""
    found = [simulated(case, GoodputCosts(), SEED) for case in cases(SEED, short=short)]

    def outcome(title: str, method: str, row: Callable[[Simulated], Row]) -> ScenarioOutcome:
        rows = tuple(row(each) for each in found)
        return ScenarioOutcome(scenario="goodput", title=title, method=method, rows=rows)

    return (
        outcome("Goodput of replayed reclaims", METHOD, tables.goodput),
        outcome("Steps lost to replayed reclaims", STEPS_LOST, tables.steps_lost),
        outcome("Restarts a group of replayed reclaims", RESTARTS, tables.restarts),
        outcome("What the supervisor does not use", UNUSED, tables.unused),
        outcome("What the supervisor does not use by restarts", SPENT, tables.spent),
        outcome("Behind an oracle that learns of reclaims by their notices", BEHIND, tables.behind),
        _published(short=short),
        await _validation(root, short=short),
    )


def _published(*, short: bool) -> ScenarioOutcome:
    """All policies again, at costs that users publish."""
    rows = [
        tables.published(simulated(case, with_published_costs(case, *costs), SEED), name)
        for case in cases(SEED, short=short)
        for name, costs in PUBLISHED.items()
        if case.most <= _MOST_NODES
    ]
    title = "Goodput of replayed reclaims at published costs"
    return ScenarioOutcome(scenario="goodput", title=title, method=PUBLISHED_COSTS, rows=tuple(rows))


async def _validation(root: Path, *, short: bool) -> ScenarioOutcome:
    scenario = _real_scenario(root, short=short)
    rows = tables.validation(await compared(scenario, root / "world", SEED))
    return ScenarioOutcome(
        scenario="goodput", title="The simulation beside real processes", method=VALIDATION, rows=rows
    )


def _real_scenario(root: Path, *, short: bool) -> ReplayScenario:
    """Sixteen nodes that are reclaimed at a fixed rate; in short, one of three nodes."""
    part = ScenarioPart.TINY if short else ScenarioPart.RATES
    options = ScenarioOptions(part=part, seeds=(_REAL_SEED,), leads=(_REAL_LEAD,))
    [scenario] = scenarios(options, guarantees.GuaranteeCosts(options.step_seconds, guarantees.timed_checkpoint(root)))
    return replace(scenario, job=replace(scenario.job, job_arguments=("--agree",)))
