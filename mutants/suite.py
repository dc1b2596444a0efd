"""Plays the unbroken product and then each mutant to all checks, several at a time."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import trial
from mutants.mutant import Mutant
from mutants.tree import ROOT, copy
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
        jobs: Mutants at a time.
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
    first = await _tried(UNBROKEN, setting)
    tell(first)
    if not first.ok:
        return [first]
    turns = asyncio.Semaphore(setting.jobs)

    async def in_turn(mutant: Mutant) -> Trials:
        async with turns:
            trials = await _tried(mutant, setting)
        tell(trials)
        return trials

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(in_turn(mutant), name=mutant.name) for mutant in mutants]
    return [first, *(task.result() for task in tasks)]


async def _tried(mutant: Mutant, setting: Setting) -> Trials:
    outcomes = []
    for check in setting.checks:
        with tempfile.TemporaryDirectory(prefix=f"mutant-{mutant.name}-") as directory:
            tree = copy(Path(directory), setting.source)
            mutant.apply(tree.root)
            tree.check_origins()
            log = setting.logs / f"{mutant.name}-{check.name}.log"
            outcomes.append(await trial.run(check, tree, mutant.files, log, setting.limit))
    return Trials(mutant, tuple(outcomes))
