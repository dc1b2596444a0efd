"""A whole line of the supervisor's stream, every field set."""

from typing import Any

MESSAGE: dict[str, Any] = {
    "type": "directive",
    "directive": "STOP",
    "act_in": 1.5,
    "seconds_left": 30,
    "job": "job",
    "run": 2,
    "generation": 7,
    "reason": "too few workers would remain",
    "notice": {"id": "aliyun/i-1", "source": "aliyun", "host": "node-1", "seconds_left": 29.5, "own": True},
    "release": False,
    "max_wait": 600,
}
