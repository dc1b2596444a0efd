"""The limits and names of fire drills and drains, however they are requested."""

SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 3600.0
"""The maximum lead, so that every drill ends by itself."""

LONGEST_DRAIN_SECONDS = 7 * 86400.0
"""The maximum lead of a drain, which does not end by itself."""

EVENT_REASON = "SimulatedReclaim"
"""The reason of an Event that requests a drill on its pod or node, or its end."""

LEAD_ANNOTATION = "job-supervisor.kube-ai.io/simulated-lead-seconds"
"""The annotation of such an Event with the lead from its creation; 0 ends the drill."""


def explained(by: str) -> str:
    """The message of a drill's notice."""
    return f"A drill, held by {by}: the machine stays."
