"""The rules are what Prometheus reads, and every alert fires when it should and at no other time."""

import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from charts.files import CHART
from tests.monitoring.monitoring_programs import MonitoringProgram
from tests.testkit.yaml_text import document

_HERE = Path(__file__).parent
_TESTS = _HERE / "alerts.test.yaml"
_RECORDING_TESTS = _HERE / "recording.test.yaml"
_RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
_SECONDS = 300.0
"""All tests here take 8 s alone; one took more than 60 with four suites and another run of tests beside it."""


def test_every_rule_is_understood(programs: Mapping[MonitoringProgram, Path]) -> None:
    """By promtool, which fails on anything that Prometheus would refuse."""
    _promtool(programs, "check", "rules", *map(str, _RULES))
    assert len(_RULES) == 2


def test_alerts_fire_when_they_should_and_at_no_other_time(programs: Mapping[MonitoringProgram, Path]) -> None:
    """On made-up series: all is well, not bad for long enough, bad, well again."""
    _promtool(programs, "test", "rules", str(_TESTS))


def test_recording_rules_record_what_they_say(programs: Mapping[MonitoringProgram, Path]) -> None:
    _promtool(programs, "test", "rules", str(_RECORDING_TESTS))
    tried = {test["name"] for test in document(_RECORDING_TESTS.read_text("utf-8"))["tests"]}
    assert tried == _named("record")


def test_every_alert_is_tried_both_ways() -> None:
    """In at least one test it fires, and in at least one it does not."""
    outcomes: dict[str, set[int]] = defaultdict(set)
    for test in document(_TESTS.read_text("utf-8"))["tests"]:
        for asked in test["promql_expr_test"]:
            assert f'"{test["name"]}"' in asked["expr"]
            outcomes[test["name"]].add(asked["exp_samples"][0]["value"])
    assert set(outcomes) == _named("alert")
    assert all(seen == {0, 1} for seen in outcomes.values())


def _named(kind: str) -> set[str]:
    files = [document(path.read_text("utf-8")) for path in _RULES]
    rules = [rule for each in files for group in each["groups"] for rule in group["rules"]]
    return {rule[kind] for rule in rules if kind in rule}


def _promtool(programs: Mapping[MonitoringProgram, Path], *arguments: str) -> None:
    command = [str(programs[MonitoringProgram.PROMTOOL]), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
