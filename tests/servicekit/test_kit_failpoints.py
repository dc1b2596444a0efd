"""A failpoint does nothing unless it is armed, and then ends its process at the passing that was asked for."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node_agent.notices import AgentFailpoint
from servicekit.failpoints import arm, failpoint, parse
from supervisor import failpoints as supervisor
from supervisor.failpoints import At

_PASS_FOUR_TIMES = """
import sys
from servicekit.failpoints import arm, failpoint, parse
from supervisor.failpoints import At
arm(parse(sys.argv[1], At))
for number in range(4):
    failpoint(At.STORE_WRITTEN)
    failpoint(At.STORE_COMMITTED)
    print(number, flush=True)
"""


def test_nothing_is_armed_by_default() -> None:
    assert parse("", At) is None
    arm(None)
    failpoint(At.STORE_COMMITTED)


@pytest.mark.parametrize(
    "text", ["store.comitted", "store.committed:0", "store.committed:x", ":1", "store.committed@HUP"]
)
def test_what_would_never_fire_is_refused(text: str) -> None:
    """An unknown name or a number that counts nothing, each with a sentence."""
    with pytest.raises(ValueError, match="failpoint"):
        parse(text, At)


@pytest.mark.parametrize(("text", "before"), [("store.committed", 0), ("store.committed:3", 2), ("store.written:2", 1)])
def test_the_process_is_gone_at_the_nth_passing(text: str, before: int) -> None:
    """Killed by SIGKILL, with a line that says why, and with what came before that passing done."""
    done = subprocess.run(
        [sys.executable, "-c", _PASS_FOUR_TIMES, text], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == [str(number) for number in range(before)]
    assert f"failpoint {text.partition(':')[0]}" in done.stderr


def test_a_signal_begins_the_count() -> None:
    script = _PASS_FOUR_TIMES.replace(
        "    print(number", "    number == 1 and signal.raise_signal(signal.SIGUSR1); print(number"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import signal" + script, "store.written@USR1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1"]


@pytest.mark.parametrize(
    ("module", "variables", "code"),
    [
        ("supervisor", {"JOB_SUPERVISOR_FAILPOINT": "nowhere"}, 78),
        (
            "node_agent",
            {
                "NODE_AGENT_NODE_NAME": "n1",
                "NODE_AGENT_SUPERVISOR": "127.0.0.1:1",
                "NODE_AGENT_TOKEN_FILE": "token",
                "NODE_AGENT_FAILPOINT": "nowhere",
            },
            78,
        ),
    ],
)
def test_a_service_does_not_start_with_an_unknown_one(
    tmp_path: Path, module: str, variables: dict[str, str], code: int
) -> None:
    arguments = ["serve"] if module == "supervisor" else []
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={"PATH": "/usr/bin", **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert "there is no failpoint 'nowhere'" in done.stderr


def test_names_are_told_apart_in_a_log() -> None:
    for registry in (supervisor.At, AgentFailpoint):
        assert len({each.value for each in registry}) == len(registry.__members__)
