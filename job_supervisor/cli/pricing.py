"""Prices what jobs held, by a table that the reader gives: what it cost, and would have cost on demand."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from job_supervisor.cli.errors import CliUsageError
from job_supervisor.cli.output import Block, Table
from supervisor.domain.capacity import PriceClass
from supervisor.domain.worker_time import percent
from supervisor.observability.views import HeldView, LedgerJobView

_HOUR = 3600.0
_SHOWN_HOURS = 0.05
_NEGLIGIBLE_SHARE = 0.01
"""Of what has a price. The machine of a pod is not known in its first seconds."""

Price = Annotated[float, Meta(ge=0, le=1e9)]


class MachinePrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of one type of machine for an hour, in one zone or in all; None is unknown.

    Without `gpus`, those of the whole machine, each worker has a machine to itself.
    """

    type: str
    zone: str | None = None
    gpus: Annotated[float, Meta(gt=0, le=1024)] | None = None
    spot: Price | None = None
    on_demand: Price | None = None


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices that one day, `as_of`, has."""

    as_of: date
    currency: str
    machines: list[MachinePrice]

    def of(self, held: HeldView) -> MachinePrice | None:
        """Returns the prices of a machine; those of its zone come first."""
        found = [each for each in self.machines if each.type == held.instance_type and each.zone in (None, held.zone)]
        return max(found, key=lambda each: each.zone is not None, default=None)


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


def read_prices(file: str) -> PriceTable:
    """Reads a table of prices.

    Raises:
        CliUsageError: There is none that can be read.
    """
    try:
        return msgspec.yaml.decode(Path(file).read_bytes(), type=PriceTable)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "it is nested too deeply"
        raise CliUsageError(f"{file} is no table of prices: {reason}.") from error


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
    price = None if prices is None else prices.of(held)
    share = None if price is None else _machines_of_a_worker(held, price)
    if price is None or share is None:
        return HeldCost(held=held, cost=None, on_demand=None)
    hours = held.worker_seconds / _HOUR * share
    by_class = {PriceClass.SPOT: price.spot, PriceClass.ON_DEMAND: price.on_demand}
    paid = by_class.get(PriceClass(held.price_class)) if held.price_class in by_class else None
    return HeldCost(
        held=held,
        cost=None if paid is None else paid * hours,
        on_demand=None if price.on_demand is None else price.on_demand * hours,
    )


def _machines_of_a_worker(held: HeldView, price: MachinePrice) -> float | None:
    """How much of a machine a worker has; None if that is unknown."""
    if price.gpus is None or (held.gpus is None and price.gpus <= 1):
        return 1.0
    return None if held.gpus is None else held.gpus / price.gpus


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
