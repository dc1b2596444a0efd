"""`torchrun --standalone` with the backend is refused, because torchrun would silently use another one."""

import subprocess
import sys

import pytest
from kubeai.torchrun.rendezvous import refusal

from tests.sdk.sdk_scripts import SDK

RUN = "/usr/lib/python3/torch/distributed/run.py"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["/usr/bin/torchrun", "--standalone", "--rdzv-backend=kubeai", "train.py"], {}),
        ([RUN, "--rdzv_backend", "kubeai", "--nproc-per-node", "2", "--standalone", "-m", "train"], {}),
        ([RUN, "--standalone", "train.py"], {"PET_RDZV_BACKEND": "kubeai"}),
        ([RUN, "--rdzv-backend", "kubeai", "train.py"], {"PET_STANDALONE": "1"}),
    ],
)
def test_it_is_refused_with_a_sentence(arguments: list[str], environment: dict[str, str]) -> None:
    assert "--nnodes=MIN:MAX" in (refusal(arguments, environment) or "")


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ([RUN, "--rdzv-backend=kubeai", "--nnodes", "1:4", "train.py", "--standalone"], {}),
        ([RUN, "--rdzv-backend=c10d", "--standalone", "train.py"], {"PET_RDZV_BACKEND": "kubeai"}),
        ([RUN, "--rdzv-backend=kubeai", "train.py"], {"PET_STANDALONE": "0"}),
        (["train.py", "--standalone", "--rdzv-backend=kubeai"], {}),
        ([], {"PET_RDZV_BACKEND": "kubeai", "PET_STANDALONE": "1"}),
    ],
)
def test_everything_else_goes_on(arguments: list[str], environment: dict[str, str]) -> None:
    assert refusal(arguments, environment) is None


def test_the_entry_point_is_light() -> None:
    """Torch loads it at every import, in workers too."""
    shown = (
        "import sys; old = set(sys.modules); from kubeai.torchrun.rendezvous import kubeai; kubeai(); "
        "print(*sorted(set(sys.modules) - old))"
    )
    command = [sys.executable, "-c", shown]
    loaded = subprocess.run(command, env={"PYTHONPATH": str(SDK)}, capture_output=True, check=True, text=True)
    heavy = {"torch", "ssl", "http.client", "kubeai.elastic.api", "kubeai.torchrun.handler", "dataclasses"}
    assert not heavy & set(loaded.stdout.split())
