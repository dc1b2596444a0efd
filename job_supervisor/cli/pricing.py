"""Prices what jobs held, by a table that the reader gives: what it cost, and would have cost on demand."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from job_supervisor.cli.output import Block, Table
from supervisor.domain.worker_time import percent
from supervisor.observability.prices import PriceTable, WorkerPrice
from supervisor.observability.views import HeldView, LedgerJobView

_HOUR = 3600.0
_SHOWN_HOURS = 0.05
_NEGLIGIBLE_SHARE = 0.01
"""Of what has a price. The machine of a pod is not known in its first seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCost:
    """What workers on one kind of machine cost.

    Attributes:
        held: The kind of machine, and for how long.
        cost: What that cost; None if it is unknown.
        on_demand: What it would have cost on demand; None if it is unknown.
    """

    held: HeldView
    cost: float | None
    on_demand: float | None

    @property
    def gpu_hours(self) -> float | None:
        """GPUs times hours; None if the GPUs of a worker are unknown."""
        return None if self.held.gpus is None else self.held.gpus * self.held.worker_seconds / _HOUR

    @property
    def is_priced(self) -> bool:
        """Whether both are known."""
        return self.cost is not None and self.on_demand is not None


def costs(jobs: Iterable[LedgerJobView], prices: PriceTable | None) -> list[HeldCost]:
    """Returns what the jobs held, the most first, with what it cost as far as that is known."""
    seconds = Counter[HeldView]()
    for job in jobs:
        for held in job.machines:
            seconds[msgspec.structs.replace(held, worker_seconds=0.0)] += held.worker_seconds  # type: ignore[assignment]
    found = [msgspec.structs.replace(held, worker_seconds=total) for held, total in seconds.items()]
    found.sort(key=lambda held: -held.worker_seconds)
    return [_cost(held, prices) for held in found]


def for_people(found: Sequence[HeldCost], prices: PriceTable | None, trained: float, unmeasured: float) -> list[Block]:
    """Returns a table and sentences.

    Args:
        found: What was held.
        prices: None shows no costs.
        trained: The worker-seconds of all jobs that trained.
        unmeasured: Those of which no process has said whether they trained.
    """
    heads = ["MACHINES", "ZONE", "CLASS", "WORKERS", "GPUS"]
    rows = [_row(each, prices) for each in found]
    if prices is not None:
        heads += ["COST", "ON DEMAND"]
    told: list[Block] = ["", Table(tuple(heads), rows)]
    if prices is not None:
        told += ["", *_sentences(found, prices, trained / _HOUR, (trained + unmeasured) / _HOUR)]
    return told


def for_programs(found: Sequence[HeldCost], prices: PriceTable | None) -> Mapping[str, object]:
    """Returns the machines; costs only with prices, and unknown ones as null."""
    machines = [
        {
            **msgspec.structs.asdict(each.held),
            "gpu_hours": each.gpu_hours,
            **({} if prices is None else {"cost": each.cost, "on_demand_cost": each.on_demand}),
        }
        for each in found
    ]
    named = {} if prices is None else {"currency": prices.currency, "prices_as_of": prices.as_of.isoformat()}
    return {"machines": machines, **named}


def _cost(held: HeldView, prices: PriceTable | None) -> HeldCost:
    price, hours = WorkerPrice() if prices is None else prices.of_worker(held), held.worker_seconds / _HOUR
    return HeldCost(
        held=held,
        cost=None if price.paid is None else price.paid * hours,
        on_demand=None if price.on_demand is None else price.on_demand * hours,
    )


def _row(each: HeldCost, prices: PriceTable | None) -> tuple[str, ...]:
    held = each.held
    cells = (
        held.instance_type or "unknown",
        held.zone or "-",
        held.price_class.replace("_", " "),
        f"{held.worker_seconds / _HOUR:,.1f} h",
        "-" if each.gpu_hours is None else f"{each.gpu_hours:,.1f} h",
    )
    return cells if prices is None else (*cells, _money(each.cost), _money(each.on_demand))


def _sentences(found: Sequence[HeldCost], prices: PriceTable, least: float, most: float) -> list[str]:
    priced = [each for each in found if each.is_priced]
    cost, on_demand = (sum(getattr(each, name) or 0.0 for each in priced) for name in ("cost", "on_demand"))
    unpriced = sum(each.held.worker_seconds for each in found if not each.is_priced) / _HOUR
    told = []
    if priced:
        saved = f", {_less(cost, on_demand)}" if on_demand else ""
        told.append(
            f"It cost {_money(cost)} {prices.currency} at the prices of {prices.as_of}, and would have cost "
            f"{_money(on_demand)} {prices.currency} on demand{saved}."
        )
    hours = sum(each.held.worker_seconds for each in priced) / _HOUR
    if unpriced >= _SHOWN_HOURS:
        told.append(f"For {unpriced:,.1f} h of workers the price is not known; they are not in these sums.")
    if priced and most and unpriced <= _NEGLIGIBLE_SHARE * hours:
        told.append(
            f"An hour in which a worker trained cost {_between(cost, least, most)} {prices.currency}; on demand, where "
            f"no hour is lost, {_money(on_demand / hours)} {prices.currency}."
        )
    return told


def _between(cost: float, least: float, most: float) -> str:
    """What each of some hours cost, of which there were at least and at most so many."""
    if not least:
        return f"at least {_money(cost / most)}"
    lower, upper = _money(cost / most), _money(cost / least)
    return lower if lower == upper else f"{lower} to {upper}"


def _less(cost: float, on_demand: float) -> str:
    saved = 1.0 - cost / on_demand
    return f"{percent(saved)} less" if saved >= 0 else f"{percent(-saved)} more"


def _money(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}"
