"""How long messages and reactions take around a supervised job."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """All in seconds.

    Attributes:
        wire: A message, in either direction.
        end: Ending all processes of a run.
        poll: Until an agent sees a notice: it asks once in this time, at a random moment of it.
        discovery: Until the launcher reads its changed host list: likewise.
    """

    wire: float = 0.05
    end: float = 2.0
    poll: float = 1.0
    discovery: float = 1.0
