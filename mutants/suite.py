"""Runs all checks on the unbroken product and then on each mutant, several in parallel."""

import asyncio
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import trial
from mutants.mutant import FailingTest, Mutant
from mutants.tree import ROOT, Tree, copy, copy_compiled
from mutants.trial import CHECKS, LIMIT_SECONDS, WHOLE_DEMO, Ending, MutantCheck, MutantOutcome

UNBROKEN = Mutant(name="unbroken", breaks="The product as it is.", edits=(), violates=())


@dataclass(frozen=True, slots=True)
class Trials:
    mutant: Mutant
    outcomes: tuple[MutantOutcome, ...]

    @property
    def ok(self) -> bool:
        """Whether every check failed for a mutant, or passed for the unbroken product."""
        if self.mutant is UNBROKEN:
            return all(outcome.ending is Ending.PASSED for outcome in self.outcomes)
        return all(outcome.caught for outcome in self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How to run a suite.

    Attributes:
        logs: Folder for the output of each command.
        checks: The checks for each mutant.
        jobs: Number of parallel commands.
        source: The tree to copy.
        limit: Seconds after which a command is ended.
    """

    logs: Path
    checks: Sequence[MutantCheck] = CHECKS
    jobs: int = 2
    source: Path = ROOT
    limit: float = LIMIT_SECONDS


async def play(mutants: Sequence[Mutant], setting: Setting, on_result: Callable[[Trials], None]) -> list[Trials]:
    """Try the unbroken product first and, if it passes, the mutants. Calls `on_result` after each.

    Raises:
        DoesNotApplyError: A mutant's text is not in the product.
        SyntaxError: A mutant is not valid Python.
        ForeignCodeError: A process would import code from outside its tree.
    """
    for mutant in mutants:
        mutant.changed(setting.source)
    with tempfile.TemporaryDirectory(prefix="mutants-product-") as directory:
        product = copy(Path(directory), setting.source)
        product.check_origins()
        product.compile()
        return await _Suite(setting, product, on_result).play(mutants)


class _Suite:
    def __init__(self, setting: Setting, product: Tree, on_result: Callable[[Trials], None]) -> None:
        self._setting = setting
        self._product = product
        self._on_result = on_result
        self._turns = asyncio.Semaphore(setting.jobs)

    async def play(self, mutants: Sequence[Mutant]) -> list[Trials]:
        """Try the unbroken product, then the mutants in parallel."""
        first = await self._tried(UNBROKEN, [check for mutant in mutants for check in mutant.shown_by])
        if not first.ok:
            return [first]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._tried(mutant, mutant.shown_by), name=mutant.name) for mutant in mutants]
        return [first, *(task.result() for task in tasks)]

    async def _tried(self, mutant: Mutant, shown_by: Collection[str | FailingTest]) -> Trials:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._outcome(mutant, check)) for check in self._checks(shown_by)]
        trials = Trials(mutant, tuple(task.result() for task in tasks))
        self._on_result(trials)
        return trials

    def _checks(self, shown_by: Collection[str | FailingTest]) -> list[MutantCheck | FailingTest]:
        """The commands and tests of that name or id, each once."""
        tests = {check.id: check for check in shown_by if isinstance(check, FailingTest)}
        names = {check for check in shown_by if isinstance(check, str)}
        checks = self._setting.checks if names else ()
        return [*(check for check in checks if check.name in names or check is WHOLE_DEMO), *tests.values()]

    async def _outcome(self, mutant: Mutant, check: MutantCheck | FailingTest) -> MutantOutcome:
        log = self._setting.logs / f"{mutant.name}-{check.name}.log"
        async with self._turns:
            # Each command has its own tree, so that the compiled files of one do not count for another.
            with tempfile.TemporaryDirectory(prefix=f"mutant-{mutant.name}-") as directory:
                tree = copy_compiled(Path(directory), self._product)
                tree.put(mutant)
                if isinstance(check, FailingTest):
                    tree.put_tests(self._setting.source)
                return await trial.run(check, tree, mutant, log, self._setting.limit)
