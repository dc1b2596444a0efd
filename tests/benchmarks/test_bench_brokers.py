"""Message brokers beside the supervisor: real ones where this machine has them."""

from pathlib import Path

import pytest

from benchmarks.harness import brokers as running
from benchmarks.harness.fleet import FleetSize
from benchmarks.scenarios import brokers

_SIZE = FleetSize(nodes=20, streams=20, jobs=4)


@pytest.mark.parametrize("name", list(running.PRODUCTS))
async def test_every_subscriber_receives_each_message_but_while_it_is_away(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is away for a second, in which half of its job's messages are published."""
    if running.program(name) is None:
        pytest.skip(f"no {running.PRODUCTS[name].program} here")
    monkeypatch.setattr(brokers, "PRODUCTS", {name: running.PRODUCTS[name]})
    [row] = await brokers.rows(tmp_path, _SIZE, notices=20, over=2.0)
    values = {figure.label: figure.value for figure in row.figures}
    assert 0 < values["published → received p50"] <= values["published → received max"] < 10
    assert 0 < values["missed"] <= 5
    assert values["server RSS"] > 0


async def test_a_broker_that_is_not_there_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert await brokers.rows(tmp_path, _SIZE, notices=20, over=2.0) == []
    assert "Redis is left out: this machine has no redis-server" in capsys.readouterr().err
