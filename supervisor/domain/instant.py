"""Points in time."""

from typing import Annotated

Instant = Annotated[float, "Unix seconds"]
"""Unix seconds of the supervisor's clock. The type tells custom resources, which write RFC 3339, from a duration."""
