"""Selects what the report's page shows of a comparison, and computes its bars. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.domain.worker_time import hours
from supervisor.goodput.comparison import ComparedRow, Comparison, assumptions, remarks, shown, summary
from supervisor.observability.page.report_contents import BarPart


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """A policy with its figures in words; None is unknown. The bar is of what was wanted."""

    policy: str
    training: str
    trained: str
    restarts: str
    steps_lost: str | None
    how: str
    bar: Sequence[BarPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonContents:
    """The sentence, the rows, and the sentences below them."""

    summary: str
    rows: Sequence[PolicyRow]
    notes: Sequence[str]


def comparison_contents(found: Comparison) -> ComparisonContents:
    notes = [*([assumptions(found)] if found.rows else []), *remarks(found)]
    return ComparisonContents(summary=summary(found), rows=[_row(each) for each in found.rows], notes=notes)


def _row(row: ComparedRow) -> PolicyRow:
    return PolicyRow(
        policy=row.policy,
        training=shown(row.share),
        trained=hours(row.trained),
        restarts=str(row.restarts),
        steps_lost=None if row.steps_lost is None else f"{row.steps_lost:,.0f}",
        how="counted" if row.counted else "simulated",
        bar=list(_bar(row)),
    )


def _bar(row: ComparedRow) -> Iterator[BarPart]:
    if row.share is None:
        return
    least, most = (min(100.0, 100 * each) for each in (row.share.at_least, row.share.at_most))
    for key, begins, ends in (("trained", 0.0, least), ("unmeasured", least, most), ("lacked", most, 100.0)):
        if ends > begins:
            yield BarPart(key, begins, ends - begins)
