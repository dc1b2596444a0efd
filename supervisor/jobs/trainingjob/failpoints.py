"""The failpoints in actions on TrainingJobs."""

from enum import StrEnum


class At(StrEnum):
    """The failpoints, in the order in which a job passes them."""

    EXCLUSIONS_SHOWN = "exclusions.shown"
    EXCLUSIONS_LISTED = "exclusions.listed"
    RUN_SUSPENDED = "run.suspended"
    RUN_LISTED = "run.listed"
    RUN_SIZED = "run.sized"
    RUN_FREED = "run.freed"
    RUN_STARTED = "run.started"
    GROWTH_ASKED = "growth.asked"
    GROWTH_TIDIED = "growth.tidied"
