"""Measures a call of `check_alive()` beside an empty function, with the standard library of any interpreter.

Writes nanoseconds per call to stdout as JSON, each the minimum of many rounds, which removes the machine's noise.
"""

import json
import sys
import timeit
import types

_ROUNDS = 40
_CALLS = 50_000


def _empty() -> bool:
    return True


def main(use: str) -> None:
    """Measure. Ours is initialised, as in a training script; the original's init would open a port to everybody."""
    import kubeai.elastic  # noqa: PLC0415 - which one this is depends on the interpreter

    if use == "ours":
        kubeai.elastic.init()
    beside = types.ModuleType("beside")
    beside.__dict__["empty"] = _empty
    empty = timeit.Timer("beside.empty()", globals={"beside": beside})
    call = timeit.Timer("kubeai.check_alive()", globals={"kubeai": kubeai.elastic})
    minimum = [sys.float_info.max, sys.float_info.max]
    for _ in range(_ROUNDS):
        for position, timer in enumerate((empty, call)):
            minimum[position] = min(minimum[position], timer.timeit(_CALLS) / _CALLS * 1e9)
    sys.stdout.write(json.dumps({"empty": minimum[0], "check_alive": minimum[1]}))


if __name__ == "__main__":
    main(sys.argv[1])
