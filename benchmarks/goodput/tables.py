"""The results of the simulations as tables."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from benchmarks.goodput.oracle import best_by_notices, best_worker_steps
from benchmarks.goodput.real import Compared
from benchmarks.results import Figure, ResultTarget, Row, Unit
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score, groups, possible_steps
from supervisor.goodput.policies import IN_ROUNDS, RESTARTED, SUPERVISOR, scores, with_restarts

AT_MOST_BEHIND = 0.01

_LABELS: Mapping[str, str] = {
    "announced": "hosts left before they went",
    "changing": "changes of hosts",
    "stopped": "stops and starts",
    "joining": "hosts not yet taken in",
    "lost": "steps lost",
}
_BY_RESTARTS: Mapping[str, str] = {
    "leaving": "restarts for hosts that leave",
    "growing": "restarts for hosts that only join",
    "announced": "hosts left before they went",
    "joining": "hosts not yet taken in",
    "stopped": "stops and starts",
    "lost": "steps lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The result of one case. It has each policy's score, and the most that oracles could make useful.

    `by_notices` are the oracles that learn of a reclaim by its notice, by restarts and in process.
    """

    case: GoodputCase
    groups: int
    possible: float
    scores: Mapping[str, Score]
    oracle: float
    restarting_oracle: float
    by_notices: tuple[float, float]

    def share(self, worker_steps: float) -> float:
        """Which part of the possible worker-steps these are."""
        return worker_steps / self.possible


def simulated(case: GoodputCase, costs: GoodputCosts, seed: int) -> Simulated:
    """Simulates every policy in one case."""
    return Simulated(
        case=case,
        groups=groups(case.schedule),
        possible=possible_steps(case, costs),
        scores=scores(case, costs, seed),
        oracle=best_worker_steps(case, costs),
        restarting_oracle=best_worker_steps(case, with_restarts(costs)),
        by_notices=(best_by_notices(case, with_restarts(costs)), best_by_notices(case, costs)),
    )


def goodput(found: Simulated) -> Row:
    """The goodput of every policy beside the oracle's."""
    by_restarts = found.share(found.restarting_oracle - found.scores[RESTARTED].useful)
    in_process = {"supervisor behind it": SUPERVISOR, "torchrun in process behind it": IN_ROUNDS}
    figures = (
        Figure(label="groups", value=found.groups, unit=Unit.COUNT),
        *_for_each(found, lambda score: found.share(score.useful), Unit.SHARE),
        Figure(label="oracle", value=found.share(found.oracle), unit=Unit.SHARE),
        *(_behind_oracle(found, label, policy) for label, policy in in_process.items()),
        Figure(label="by restarts behind the oracle by restarts", value=by_restarts, unit=Unit.SHARE),
    )
    return Row(case=found.case.name, figures=figures)


def _behind_oracle(found: Simulated, label: str, policy: str) -> Figure:
    behind = found.share(found.oracle - found.scores[policy].useful)
    target = ResultTarget(at_most=AT_MOST_BEHIND, why=_reasons(found, policy))
    return Figure(label=label, value=behind, unit=Unit.SHARE, target=target)


def behind(found: Simulated) -> Row:
    """By how much the supervisor is behind the oracle that learns by notices, and what only the other one can know."""
    kinds = (("by restarts", RESTARTED, found.restarting_oracle), ("in process", SUPERVISOR, found.oracle))
    shares: dict[str, float] = {}
    for (by, policy, oracle), by_notices in zip(kinds, found.by_notices, strict=True):
        shares[by] = useful = found.scores[policy].useful
        shares[f"oracle by notices, {by}"] = by_notices
        shares[f"behind it, {by}"] = by_notices - useful
        shares[f"foresight, {by}"] = oracle - by_notices
    figures = (Figure(label=label, value=found.share(steps), unit=Unit.SHARE) for label, steps in shares.items())
    return Row(case=found.case.name, figures=tuple(figures))


def spent(found: Simulated) -> Row:
    """Return where the goodput of the supervisor by restarts is lost."""
    together = {
        "together": found.share(found.possible - found.scores[RESTARTED].useful),
        "oracle by restarts, together": found.share(found.possible - found.restarting_oracle),
    }
    shares = {**_labelled(found, RESTARTED, _BY_RESTARTS), **together}
    figures = (Figure(label=label, value=value, unit=Unit.SHARE) for label, value in shares.items())
    return Row(case=found.case.name, figures=tuple(figures))


def published(found: Simulated, name: str) -> Row:
    """The goodput of every policy at published costs."""
    figures = (
        Figure(label="groups", value=found.groups, unit=Unit.COUNT),
        *_for_each(found, lambda score: found.share(score.useful), Unit.SHARE),
        Figure(label="oracle by notices, by restarts", value=found.share(found.by_notices[0]), unit=Unit.SHARE),
        Figure(label="oracle by restarts", value=found.share(found.restarting_oracle), unit=Unit.SHARE),
        Figure(label="oracle", value=found.share(found.oracle), unit=Unit.SHARE),
    )
    return Row(case=f"{found.case.name}: {name}", figures=figures)


def steps_lost(found: Simulated) -> Row:
    """The steps that each policy repeated."""
    return Row(case=found.case.name, figures=_for_each(found, lambda score: score.steps_lost, Unit.COUNT))


def restarts(found: Simulated) -> Row:
    """The restarts of all processes for each group of reclaims."""
    figures = _for_each(found, lambda score: score.restarts / max(1, found.groups), Unit.RATIO)
    return Row(case=found.case.name, figures=figures)


def unused(found: Simulated) -> Row:
    """Where the supervisor's goodput is lost, and how much no policy could have used."""
    by_reason = _labelled(found, SUPERVISOR, _LABELS)
    figures = (
        *(Figure(label=label, value=value, unit=Unit.SHARE) for label, value in by_reason.items()),
        Figure(label="together", value=found.share(found.possible - found.scores[SUPERVISOR].useful), unit=Unit.SHARE),
        Figure(label="oracle, together", value=found.share(found.possible - found.oracle), unit=Unit.SHARE),
    )
    return Row(case=found.case.name, figures=figures)


def validation(found: Compared) -> tuple[Row, Row]:
    """The simulated score of a case and the real one."""
    return (
        _score(f"{found.case.name}: simulated", found, found.simulated),
        _score(f"{found.case.name}: real processes", found, found.real),
    )


def _score(name: str, found: Compared, score: Score) -> Row:
    share = score.useful / possible_steps(found.case, found.costs)
    figures = (
        Figure(label="groups", value=groups(found.case.schedule), unit=Unit.COUNT),
        Figure(label="goodput", value=share, unit=Unit.SHARE),
        Figure(label="steps lost", value=score.steps_lost, unit=Unit.COUNT),
        Figure(label="restarts", value=score.restarts, unit=Unit.COUNT),
    )
    return Row(case=name, figures=figures)


def _for_each(found: Simulated, value: Callable[[Score], float], unit: Unit) -> tuple[Figure, ...]:
    return tuple(Figure(label=name, value=value(score), unit=unit) for name, score in found.scores.items())


def _labelled(found: Simulated, policy: str, labels: Mapping[str, str]) -> Mapping[str, float]:
    by_reason = asdict(found.scores[policy].unused)
    return {label: found.share(by_reason[reason]) for reason, label in labels.items()}


def _reasons(found: Simulated, policy: str) -> str:
    """The largest reasons for unused capacity, as a sentence."""
    largest = sorted(_labelled(found, policy, _LABELS).items(), key=lambda item: -item[1])[:2]
    named = " and ".join(f"{_percent(share)} ({label})" for label, share in largest)
    oracle = found.share(found.possible - found.oracle)
    return f"of the capacity it does not use {named}; the oracle, {_percent(oracle)} in all."


def _percent(share: float) -> str:
    return f"{share * 100:.2f} %"
