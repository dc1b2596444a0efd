"""Settings of property tests: the same examples in every run, or more and random ones on request.

`make properties` sets PROPERTY_EXAMPLES to a factor; with one the examples are random.
"""

import os

from hypothesis import HealthCheck, Phase, settings

_FACTOR = int(os.environ.get("PROPERTY_EXAMPLES", "1"))


def examples(number: int) -> settings:
    """Settings with `number` examples, times the factor of the environment."""
    return settings(
        max_examples=number * _FACTOR,
        derandomize=_FACTOR == 1,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],  # Explaining a failure takes minutes.
        # One server for all examples is what a server meets.
        suppress_health_check=list(HealthCheck),
    )
