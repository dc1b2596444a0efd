"""Takes the agreed step away from a process of a test, as its control."""

from typing import Any

import kubeai.elastic as kubeai
from kubeai.elastic import api


def disagree() -> None:
    """Let each process save and exit as soon as it is told, as without the agreement."""
    init = api.init
    told: dict[str, Any] = {
        "init": lambda rank=None, *, sigterm=False, **_: init(rank, sigterm=sigterm),
        "should_stop": lambda _: not api.check_alive(),
        "should_checkpoint": lambda _: False,
    }
    vars(api).update(told)
    vars(kubeai).update(told)
