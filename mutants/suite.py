"""Runs all checks on the unbroken product and then on each mutant, several at a time."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutants import trial
from mutants.mutant import Mutant
from mutants.tree import ROOT, Tree, copy
from mutants.trial import CHECKS, LIMIT_SECONDS, Check, Ending, Outcome

UNBROKEN = Mutant(name="unbroken", breaks="The product as it is.", edits=())


@dataclass(frozen=True, slots=True)
class Trials:
    """What became of one mutant."""

    mutant: Mutant
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether every check said what it had to: that a mutant fails, and the unbroken product passes."""
        if self.mutant is UNBROKEN:
            return all(outcome.ending is Ending.PASSED for outcome in self.outcomes)
        return all(outcome.caught for outcome in self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a suite is run.

    Attributes:
        logs: Where each command's output goes.
        checks: What is run on each mutant.
        jobs: Commands at a time.
        source: The tree that is copied.
        limit: Seconds after which a command is ended.
    """

    logs: Path
    checks: Sequence[Check] = CHECKS
    jobs: int = 2
    source: Path = ROOT
    limit: float = LIMIT_SECONDS


async def play(mutants: Sequence[Mutant], setting: Setting, tell: Callable[[Trials], None]) -> list[Trials]:
    """Try the unbroken product first, and the mutants where it has passed; `tell` is called as each is done.

    Raises:
        DoesNotApplyError: A mutant's text is not in the product.
        SyntaxError: A mutant is no Python.
        ForeignCodeError: A process would import other code than that of its tree.
    """
    for mutant in mutants:
        mutant.changed(setting.source)
    with _tree(UNBROKEN, setting) as tree:
        tree.check_origins()
    turns = asyncio.Semaphore(setting.jobs)
    first = await _tried(UNBROKEN, setting, turns, tell)
    if not first.ok:
        return [first]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_tried(mutant, setting, turns, tell), name=mutant.name) for mutant in mutants]
    return [first, *(task.result() for task in tasks)]


async def _tried(mutant: Mutant, setting: Setting, turns: asyncio.Semaphore, tell: Callable[[Trials], None]) -> Trials:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_in_turn(mutant, check, setting, turns)) for check in setting.checks]
    trials = Trials(mutant, tuple(task.result() for task in tasks))
    tell(trials)
    return trials


async def _in_turn(mutant: Mutant, check: Check, setting: Setting, turns: asyncio.Semaphore) -> Outcome:
    log = setting.logs / f"{mutant.name}-{check.name}.log"
    async with turns:
        with _tree(mutant, setting) as tree:
            return await trial.run(check, tree, mutant.files, log, setting.limit)


@contextmanager
def _tree(mutant: Mutant, setting: Setting) -> Iterator[Tree]:
    """A tree of its own for each command, so that one's compiled files do not count for another."""
    with tempfile.TemporaryDirectory(prefix=f"mutant-{mutant.name}-") as directory:
        tree = copy(Path(directory), setting.source)
        mutant.apply(tree.root)
        yield tree
