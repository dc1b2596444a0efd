import json
from pathlib import Path

import pytest

from simulator.crashes import crashes

TRACEBACK = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f(x)
{}"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     f(x)
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "b.py", line 2, in g
    |     g(x)
    | NameError: name 'said' is not defined
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (TRACEBACK.format("NameError: name 'said' is not defined"), ("NameError: name 'said' is not defined",)),
        (json.dumps({"event": "failed", "exception": TRACEBACK.format("ValueError: no")}), ("ValueError: no",)),
        (
            GROUP,
            (
                "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
                "NameError: name 'said' is not defined",
            ),
        ),
        (json.dumps({"event": "NameError: told by a tenant"}), ()),
        ("{torn", ()),
        ("launcher: ring 1: 7 workers, rank 0 on node1", ()),
    ],
)
def test_an_error_in_the_log_of_a_service_is_found(tmp_path: Path, log: str, found: tuple[str, ...]) -> None:
    """Services log only unforeseen errors with a traceback, as text or in a line of JSON."""
    (tmp_path / "supervisor.log").write_text(f"{log}\n", encoding="utf-8")
    assert crashes(tmp_path) == tuple(f"supervisor: {error}" for error in found)


def test_a_training_script_may_end_with_an_error_of_its_own(tmp_path: Path) -> None:
    """An error of programming counts there, too, because the SDK runs in the same process."""
    (tmp_path / "job-demo.log").write_text(
        f"{TRACEBACK.format('DamagedCheckpointError: no')}\n{TRACEBACK.format('AttributeError: no')}\n",
        encoding="utf-8",
    )
    assert crashes(tmp_path) == ("job-demo: AttributeError: no",)
