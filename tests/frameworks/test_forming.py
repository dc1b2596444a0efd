"""kubeai.torch: the process groups of rounds are formed."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testkit.own_network import OWN_NETWORK, may_have_own_network

_HERE = Path(__file__).parent
_SECONDS = 120.0
_CHECKOUT = _HERE.parents[1]
_ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_CHECKOUT / "sdk"), str(_CHECKOUT)])}
_GIVES_UP_AFTER = 4


@pytest.fixture
def port(fsdp2: Path) -> Iterator[str]:
    """That of a store of rounds."""
    command = [str(fsdp2 / "bin" / "python"), str(_HERE / "frameworks_store.py")]
    with subprocess.Popen(command, text=True, env=_ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stores:
        assert stores.stdin is not None
        assert stores.stdout is not None
        stores.stdin.write("\n")
        stores.stdin.flush()
        yield stores.stdout.readline().strip()
        stores.kill()


@pytest.mark.brief
@pytest.mark.timeout(300)
def test_who_has_failed_to_form_a_round_forms_the_next_one_with_who_has_not(fsdp2: Path, port: str) -> None:
    """Such as when one rank sees a newer round, and the others believe that all are there."""
    script = str(_HERE / "frameworks_forming.py")
    started = [
        subprocess.Popen(
            [str(fsdp2 / "bin" / "python"), script, port, rank, has_failed],
            text=True,
            env=_ENVIRON,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank, has_failed in (("0", "yes"), ("1", "no"))
    ]
    said = [process.communicate(timeout=_SECONDS)[0].splitlines()[-2:] for process in started]
    assert said == [["not formed", "[7, 7]"], ["[7, 7]"]]


@pytest.mark.brief
@pytest.mark.timeout(300)
def test_a_store_whose_process_is_stopped_is_given_up(fsdp2: Path) -> None:
    """Its host still accepts connections. Torch itself would wait without an end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        command = [str(fsdp2 / "bin" / "python"), str(_HERE / "frameworks_silent_store.py"), port]
        found = subprocess.run(command, env=_ENVIRON, capture_output=True, text=True, check=False, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.endswith("it does not answer")


@pytest.mark.brief
@pytest.mark.timeout(300)
@pytest.mark.skipif(not may_have_own_network(), reason="needs a resolver of its own that answers nothing")
def test_the_store_of_a_round_is_reached_although_no_resolver_answers(fsdp2: Path, tmp_path: Path) -> None:
    """Torch looks up the name of its address before it connects, and is longer about it than a connection may take."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="ascii")
    command = [str(fsdp2 / "bin" / "python"), str(_HERE / "frameworks_late_names.py"), str(tmp_path / "resolv.conf")]
    environ = {**_ENVIRON, "RES_OPTIONS": f"timeout:{_GIVES_UP_AFTER} attempts:1"}
    found = subprocess.run([*OWN_NETWORK, *command], env=environ, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) >= _GIVES_UP_AFTER
