"""What a fire drill is held to, however it is asked for."""

SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 3600.0
"""Of its lead: none lasts for ever, whatever becomes of whoever began it."""


def explained(by: str) -> str:
    """Says of a drill's notice that it is one."""
    return f"A drill, held by {by}: the machine stays."
