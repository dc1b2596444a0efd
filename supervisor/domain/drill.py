"""What a fire drill is held to, however it is asked for."""

SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 3600.0
"""Of its lead: none lasts for ever, whatever becomes of whoever began it."""

EVENT_REASON = "SimulatedReclaim"
"""Of an Event on a cluster that asks for a drill of its pod or node, or for the end of one."""

LEAD_ANNOTATION = "job-supervisor.kube-ai.io/simulated-lead-seconds"
"""Says on such an Event how long after its creation the subject would go; 0: the drill is to end."""


def explained(by: str) -> str:
    """Says of a drill's notice that it is one."""
    return f"A drill, held by {by}: the machine stays."
