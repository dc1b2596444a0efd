"""Measures calls of the SDK beside empty functions, with the standard library of any interpreter.

Writes nanoseconds per call to stdout as JSON, each the minimum of many rounds, which removes the machine's noise.
"""

import json
import sys
import timeit
import types

_ROUNDS = 40
_CALLS = 50_000


_STEP = 123_456

_CALLS_OF = {
    "original": {"empty": "beside.empty()", "check_alive": "kubeai.check_alive()"},
    "ours": {
        "empty": "beside.empty()",
        "check_alive": "kubeai.check_alive()",
        "empty_with_step": "beside.empty_with_step(step)",
        "should_stop": "kubeai.should_stop(step)",
        "should_checkpoint": "kubeai.should_checkpoint(step)",
    },
}


def _empty() -> bool:
    return True


def _empty_with_step(step: int) -> bool:  # noqa: ARG001 - as `should_stop`
    return False


def main(use: str) -> None:
    """Measure. Ours is initialised, as in a training script; the original's init would open a port to everybody."""
    import kubeai.elastic  # noqa: PLC0415 - which one this is depends on the interpreter

    if use == "ours":
        kubeai.elastic.init()
    beside = types.ModuleType("beside")
    beside.__dict__.update(empty=_empty, empty_with_step=_empty_with_step)
    names = {"beside": beside, "kubeai": kubeai.elastic, "step": _STEP}
    timers = {name: timeit.Timer(call, globals=names) for name, call in _CALLS_OF[use].items()}
    minimum = dict.fromkeys(timers, sys.float_info.max)
    for _ in range(_ROUNDS):
        for name, timer in timers.items():
            minimum[name] = min(minimum[name], timer.timeit(_CALLS) / _CALLS * 1e9)
    sys.stdout.write(json.dumps(minimum))


if __name__ == "__main__":
    main(sys.argv[1])
