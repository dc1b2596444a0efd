"""The report on the mutants."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from mutants.mutant import Mutant
from mutants.suite import UNBROKEN, Trials
from mutants.trial import Ending, MutantOutcome


def listed(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yield each mutant's name and defect, and whether CI tries it."""
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        yield f"{mutant.name:<{width}}  {'ci' if mutant.in_ci else '  '}  {mutant.breaks}"


def lines(trials: Trials) -> Iterator[str]:
    """Describe a mutant and the result of each check."""
    yield f"{trials.mutant.name}: {trials.mutant.breaks}"
    for outcome in trials.outcomes:
        yield f"    {outcome.check:<6} {outcome.ending:<13} {outcome.seconds:4.0f} s"
        yield from (f"        {sentence}" for sentence in _sentences(outcome))


def _sentences(outcome: MutantOutcome) -> Iterator[str]:
    if outcome.ending is not Ending.PASSED and not outcome.findings:
        yield outcome.last_line
    yield from (f"crashed: {crash}" for crash in outcome.crashes)
    for finding in outcome.findings:
        more = f" (and {finding.count - 1} more)" if finding.count > 1 else ""
        yield f"{finding.kind}: {finding.detail}{more}"


def table(found: Sequence[Trials]) -> Table:
    result = Table(title="Mutants, judged by the demo and the replay", title_justify="left")
    result.add_column("mutant", no_wrap=True)
    result.add_column("check")
    result.add_column("ended")
    result.add_column("took", justify="right")
    for trials in found:
        for outcome in trials.outcomes:
            result.add_row(trials.mutant.name, Text(outcome.check), _cell(outcome, trials), f"{outcome.seconds:.0f} s")
    return result


def _cell(outcome: MutantOutcome, trials: Trials) -> Text:
    right = outcome.caught or (trials.mutant is UNBROKEN and outcome.ending is Ending.PASSED)
    kinds = ", ".join(finding.kind for finding in outcome.findings)
    return Text(f"{outcome.ending}: {kinds}" if kinds else outcome.ending, style="" if right else "bold red")


def conclusion(found: Sequence[Trials], seconds: float) -> str:
    if not found[0].ok:
        return "FAILED: the unbroken product must pass before mutants are tried"
    wrong = [trials.mutant.name for trials in found if not trials.ok]
    count, minutes = len(found) - 1, seconds / 60
    if wrong:
        return f"FAILED: {len(wrong)} of {count} mutants were not caught by every check: {', '.join(wrong)}"
    return f"Every check caught all {count} mutants and passed the unbroken product, in {minutes:.0f} min"
