"""The images, started and probed as containers."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.images.images_building import Image
from tests.images.images_containers import Engine, ImageContainer

_EACH = pytest.mark.parametrize("image", Image)
_PROBE_SECONDS = 5.0


@_EACH
def test_help_lists_every_setting(engine: Engine, image: Image) -> None:
    prefix = {Image.SERVER: "JOB_SUPERVISOR_", Image.AGENT: "NODE_AGENT_"}[image]
    said = engine.once(image, "--help")
    assert said.returncode == 0
    assert f"{prefix}PROBE_ADDRESS" in said.stdout


def test_an_agent_that_is_told_nothing_says_what_is_missing(engine: Engine) -> None:
    """Without settings the container ends at once, with the exit code of wrong ones and a sentence."""
    said = engine.once(Image.AGENT)
    assert said.returncode == 78
    assert "NODE_AGENT_NODE_NAME: must be set" in said.stderr


def test_a_supervisor_takes_an_agent_in_and_both_end_when_asked(engine: Engine, data: Path) -> None:
    """Both become ready in containers, the agent by a token that the supervisor's image made; SIGTERM ends both."""
    with _supervisor(engine, data) as supervisor:
        assert _ready(supervisor)["ok"]
        _make_token(engine, data)
        with _agent(engine, data) as agent:
            assert _ready(agent)["detail"]["supervisor"] == "acknowledged"
            assert "1 agent is connected." in _job_supervisor(engine, data, "status")
            assert agent.stop() == 0
        assert supervisor.stop() == 0
    assert {path.name for path in data.iterdir()} >= {"supervisor.sqlite", "token-secret"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What a volume that is the container's alone would be."""
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


@contextmanager
def _supervisor(engine: Engine, data: Path) -> Iterator[ImageContainer]:
    settings = {"GRPC_ADDRESS": "127.0.0.1:0", "HTTP_ADDRESS": "127.0.0.1:0", "PROBE_ADDRESS": "127.0.0.1:0"}
    with engine.running(
        Image.SERVER,
        more=[_volume(data), *(f"--env=JOB_SUPERVISOR_{name}={value}" for name, value in settings.items())],
    ) as container:
        container.wait_for((data / "endpoints.json").exists, "the supervisor serves")
        yield container


@contextmanager
def _agent(engine: Engine, data: Path) -> Iterator[ImageContainer]:
    settings = {
        "NODE_NAME": "node-1",
        "NODE_UID": "machine-1",
        "SUPERVISOR": json.loads((data / "endpoints.json").read_bytes())["grpc"],
        "TOKEN_FILE": "/var/lib/job-supervisor/token",
        "SOURCES": "file",
        "FILE_PATH": "/var/lib/job-supervisor/reclaim",
        "PROBE_ADDRESS": "127.0.0.1:0",
    }
    with engine.running(
        Image.AGENT, more=[_volume(data), *(f"--env=NODE_AGENT_{name}={value}" for name, value in settings.items())]
    ) as container:
        yield container


def _make_token(engine: Engine, data: Path) -> None:
    said = engine.once(Image.SERVER, "token", "agent", "--node", "node-1", more=[_volume(data)])
    assert said.returncode == 0, said.stderr
    (data / "token").write_text(said.stdout, encoding="utf-8")


def _job_supervisor(engine: Engine, data: Path, *arguments: str) -> str:
    """What the command for people says, which is in the same image."""
    said = engine.once(Image.SERVER, *arguments, more=["--entrypoint=job-supervisor", _volume(data)])
    assert said.returncode == 0, said.stderr
    return said.stdout


def _volume(data: Path) -> str:
    return f"--volume={data}:/var/lib/job-supervisor"


def _ready(container: ImageContainer) -> Any:
    event = container.wait_for(lambda: container.events("probes.listening"), "it can be probed")[0]
    return container.wait_for(lambda: _answer(f"http://{event['address']}/readyz"), "it is ready")


def _answer(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS) as answer:  # noqa: S310 - the scheme is ours
            return json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        refused.close()
        return None
