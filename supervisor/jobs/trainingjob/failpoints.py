"""Where the supervisor can be made to kill itself while it acts on a TrainingJob."""

from enum import StrEnum


class At(StrEnum):
    """Every failpoint, in the order in which a job meets them."""

    EXCLUSIONS_SHOWN = "exclusions.shown"
    EXCLUSIONS_LISTED = "exclusions.listed"
    RUN_SUSPENDED = "run.suspended"
    RUN_LISTED = "run.listed"
    RUN_SIZED = "run.sized"
    RUN_FREED = "run.freed"
    RUN_STARTED = "run.started"
    GROWTH_ASKED = "growth.asked"
    GROWTH_TIDIED = "growth.tidied"
