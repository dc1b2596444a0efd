"""The file of targets: what is wrong with it is said, with the target and without a URL."""

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.__main__ import main
from supervisor.observability.notifications.config import USUAL, ConfigError, load
from supervisor.observability.notifications.message import NotificationKind
from supervisor.settings import PREFIX

TARGET = {"name": "team", "urlFile": "team.url"}


def written(directory: Path, content: Any) -> Path:
    path = directory / "notifications.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_the_defaults(tmp_path: Path) -> None:
    (target,) = load(written(tmp_path, {"targets": [TARGET]})).targets
    assert (target.format, target.kinds, target.namespaces) == ("webhook", USUAL, ())
    assert NotificationKind.NOTICE not in USUAL
    assert target.url_file == str(tmp_path / "team.url")


def test_an_absolute_path_stays_as_it_is(tmp_path: Path) -> None:
    (target,) = load(written(tmp_path, {"targets": [{**TARGET, "urlFile": "/run/url"}]})).targets
    assert target.url_file == "/run/url"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "Input data was truncated"),
        ({"targets": [{**TARGET, "url": "https://hooks.example/secret"}]}, "unknown field `url`"),
        ({"targets": [{**TARGET, "kinds": ["everything"]}]}, "Invalid enum value 'everything'"),
        ({"targets": [{**TARGET, "kinds": []}]}, "length >= 1"),
        ({"targets": [{**TARGET, "name": "A team"}]}, "regex"),
        ({"targets": [TARGET, TARGET]}, "two targets have the same name"),
        ({"targets": [{**TARGET, "text": "{{ tilte }}"}]}, "target team: the template fails: 'tilte' is undefined"),
        ({"targets": [TARGET] * 21}, "length <= 20"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, content: Any, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError, match=r"notifications\.json"):
        load(path)
    monkeypatch.setenv(f"{PREFIX}NOTIFICATIONS_FILE", str(path))
    monkeypatch.setenv(f"{PREFIX}DATA_DIR", str(tmp_path / "data"))
    for command in ("serve", "notify-test"):
        assert main([command]) == 78
        written_error = capsys.readouterr().err
        assert said in written_error
        assert "JOB_SUPERVISOR_NOTIFICATIONS_FILE" in written_error
        assert "hooks.example" not in written_error


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")


def test_a_test_needs_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify-test"]) == 78
    assert "names no file" in capsys.readouterr().err
