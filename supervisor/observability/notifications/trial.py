"""Sends a test message to each target, once."""

from collections.abc import Mapping

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.observability.notifications.composing import trial
from supervisor.observability.notifications.config import Config
from supervisor.observability.notifications.delivery import Outcome, Poster
from supervisor.observability.notifications.outbox import attempted


async def send(config: Config, timeout_seconds: float, proxy: str) -> Mapping[str, str]:
    """Returns why the message could not be sent, by target; empty for a target that accepted it."""
    clock = Clock()
    poster, message, bulkhead = Poster.open(timeout_seconds, proxy), trial(config.origin, clock.wall()), Bulkhead(clock)
    reasons = {}
    async with poster.session:
        for target in config.targets:
            attempt = await attempted(target, message, poster, bulkhead)
            reasons[target.name] = "" if attempt.outcome is Outcome.SENT else attempt.reason
    return reasons
