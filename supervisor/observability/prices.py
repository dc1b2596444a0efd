"""Prices of machines, from a table that an operator keeps: what an hour of a worker costs, and would cost on demand."""

from datetime import date
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from supervisor.domain.capacity import PriceClass

Price = Annotated[float, Meta(ge=0, le=1e9)]


class PricesError(ValueError):
    """A file is no table of prices; a person has to correct it."""


class HeldMachine(Protocol):
    """The kind of machine that a worker is held on, see `supervisor.domain.ledger.HeldOn`."""

    @property
    def zone(self) -> str:
        """Empty if it is unknown."""

    @property
    def instance_type(self) -> str:
        """Empty if it is unknown."""

    @property
    def price_class(self) -> str:
        """A `PriceClass`, or one of a later version."""

    @property
    def gpus(self) -> float | None:
        """The GPUs of the worker; None if they are unknown."""


class MachineTypePrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of one type of machine for an hour, in one zone or in all; None is unknown.

    Without `gpus`, those of the whole machine, each worker has a machine to itself.
    """

    type: Annotated[str, Meta(min_length=1)]
    zone: Annotated[str, Meta(min_length=1)] | None = None
    gpus: Annotated[float, Meta(gt=0, le=1024)] | None = None
    spot: Price | None = None
    on_demand: Price | None = None


class WorkerPrice(msgspec.Struct, frozen=True):
    """What an hour of one worker costs, and would cost on demand; None is unknown."""

    paid: float | None = None
    on_demand: float | None = None


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices that one day, `as_of`, has."""

    as_of: date
    currency: Annotated[str, Meta(min_length=1, max_length=20)]
    machines: list[MachineTypePrices]

    def of_worker(self, held: HeldMachine) -> WorkerPrice:
        """Returns the prices of a worker on a machine; those of its zone come first. Nothing is guessed."""
        found = [each for each in self.machines if each.type == held.instance_type and each.zone in (None, held.zone)]
        price = max(found, key=lambda each: each.zone is not None, default=None)
        share = None if price is None else _machines_of_a_worker(held, price)
        if price is None or share is None:
            return WorkerPrice()
        paid = {PriceClass.SPOT.value: price.spot, PriceClass.ON_DEMAND.value: price.on_demand}.get(held.price_class)
        return WorkerPrice(
            paid=None if paid is None else paid * share,
            on_demand=None if price.on_demand is None else price.on_demand * share,
        )


def read_prices(file: Path) -> PriceTable:
    """Reads a table of prices, in YAML or JSON.

    Raises:
        PricesError: There is none that can be read.
    """
    try:
        # A day is a date in YAML, and a string in JSON.
        return msgspec.convert(msgspec.yaml.decode(file.read_bytes()), PriceTable)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "it is nested too deeply"
        if isinstance(error, ValueError) and not isinstance(error, msgspec.MsgspecError):
            # YAML reads days and numbers by itself, and does not say where one is wrong.
            reason = f"`as_of`, or another day or number in it, is none: {reason}"
        raise PricesError(f"{file} is no table of prices: {reason}") from error


def _machines_of_a_worker(held: HeldMachine, price: MachineTypePrices) -> float | None:
    """How much of a machine a worker has; None if that is unknown."""
    if price.gpus is None or (held.gpus is None and price.gpus <= 1):
        return 1.0
    # A worker that asks for devices of another kind, or for none, has a part that nobody names.
    return held.gpus / price.gpus if held.gpus else None
