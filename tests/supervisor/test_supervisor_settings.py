"""The supervisor's settings and the commands' exit codes."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from servicekit.settings import SettingsError, load
from supervisor.__main__ import main
from supervisor.domain.ids import Host
from supervisor.identity.tokens import AgentPrincipal, LauncherPrincipal, Operator, Tokens, Viewer
from supervisor.settings import PREFIX, Settings

Here = Callable[..., tuple[int, str, str]]

SHARED = {"STORE": "kubernetes", "KEYS_SECRET": "keys"}


def test_the_promised_defaults() -> None:
    assert asdict(Settings()) == {
        "data_dir": Path("job-supervisor-data"),
        "store": "sqlite",
        "namespace": "",
        "leader_election": True,
        "kubernetes_events": True,
        "lease_name": "job-supervisor",
        "lease_seconds": 3,
        "pod_name": "",
        "store_timeout_seconds": 5.0,
        "kinds": (),
        "namespaces": (),
        "reclaim_events": (
            "BestEffortToBeReleased:300",
            "SpotToBeReleased:180",
            "InstanceToBeTerminated",
            "ReceivedReclaimNodeNotification:300",
        ),
        "reclaim_taints": (
            "aws-node-termination-handler/spot-itn:120",
            "aws-node-termination-handler/rebalance-recommendation",
            "aws-node-termination-handler/scheduled-maintenance",
            "aws-node-termination-handler/asg-lifecycle-termination",
            "cloud.google.com/impending-node-termination:30",
            "node-problem-controller.cce.io/SpotPriceNodeReclaimNotification:300",
            "karpenter.sh/disrupted",
            "ToBeDeletedByClusterAutoscaler",
        ),
        "agent_account": "arena-system/elastic-job-supervisor-agent",
        "kueue_priority_boost_max": 0,
        "kueue_priority_boost_step_seconds": 600.0,
        "kueue_priority_boost_hold_seconds": 300.0,
        "token_audience": "job-supervisor.kube-ai.io",
        "token_issuer": "",
        "keeper_port": 0,
        "grpc_address": "127.0.0.1:8470",
        "http_address": "127.0.0.1:8471",
        "status_page": True,
        "cluster_sign_in": False,
        "docs_url": "",
        "grafana_url": "",
        "prices_file": None,
        "notifications_file": None,
        "notifications_group_seconds": 10.0,
        "notifications_uncovered_seconds": 60.0,
        "notifications_timeout_seconds": 10.0,
        "notifications_proxy": "",
        "webhook_address": "",
        "public_address": "",
        "public_ca_file": None,
        "probe_address": "",
        "metrics_address": "",
        "metrics_jobs": 200,
        "traces": False,
        "tls_cert_file": None,
        "tls_key_file": None,
        "keys_secret": "",
        "tls_names": (),
        "tls_leaf_hours": 720.0,
        "ca_config_map": "elastic-job-supervisor-ca",
        "webhook_name": "",
        "tls_reload_seconds": 5.0,
        "heartbeat_seconds": 5.0,
        "connection_seconds": 10.0,
        "launcher_live_seconds": 15.0,
        "launcher_hosts": 20_000,
        "retention_hours": 24.0,
        "record_url_file": None,
        "record_days": 30.0,
        "record_entries": 500_000,
        "log_format": "auto",
        "log_level": "info",
        "failpoint": "",
        "window_seconds": 1.25,
        "margin_seconds": 5.0,
        "leave_margin_seconds": 2.0,
        "rank_zero_head_start_seconds": 1.0,
        "lost_grace_seconds": 30.0,
        "rank_zero_grace_seconds": 5.0,
        "launcher_grace_seconds": 5.0,
        "agreement_timeout_seconds": 10.0,
        "just_in_time": True,
        "weigh_joins": True,
        "stop_timeout_seconds": 300.0,
        "resume_delay_seconds": 2.0,
        "resume_timeout_seconds": 120.0,
        "resume_backoff_seconds": 5.0,
        "probe_seconds": 300.0,
        "move_timeout_seconds": 600.0,
        "growth_delay_seconds": 30.0,
        "default_lead_seconds": 300.0,
        "scheduled_horizon_seconds": 300.0,
        "scheduled_avoid_seconds": 3600.0,
        "checkpoint_pause_seconds": 60.0,
        "gone_grace_seconds": 5.0,
        "expire_seconds": 300.0,
    }


def test_an_event_without_seconds_has_the_usual_lead() -> None:
    variables = {PREFIX + "RECLAIM_EVENTS": "A:20, B", PREFIX + "DEFAULT_LEAD_SECONDS": "77"}
    assert load(Settings, PREFIX, variables).event_leads == {"A": 20, "B": 77}
    assert load(Settings, PREFIX, {PREFIX + "RECLAIM_EVENTS": ""}).event_leads == {}


def test_a_taint_without_seconds_has_no_lead() -> None:
    variables = {PREFIX + "RECLAIM_TAINTS": "drain.example.com/now:20, Draining"}
    assert load(Settings, PREFIX, variables).taint_leads == {"drain.example.com/now": 20, "Draining": None}
    assert load(Settings, PREFIX, {PREFIX + "RECLAIM_TAINTS": ""}).taint_leads == {}


def test_the_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert not {name for name in asdict(Settings()) if f"  {PREFIX}{name.upper()} (" not in said}
    assert f"  {PREFIX}MARGIN_SECONDS (5.0)\n" in said


@pytest.mark.parametrize("field", ["GRPC_ADDRESS", "HTTP_ADDRESS"])
@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "supervisor:1"])
def test_an_address_that_others_can_reach_is_refused(field: str, address: str) -> None:
    """Where there is no certificate: tokens would cross the network in the clear."""
    with pytest.raises(SettingsError, match="loopback"):
        load(Settings, PREFIX, {PREFIX + field: address})
    certificate = {PREFIX + "TLS_CERT_FILE": "tls.crt", PREFIX + "TLS_KEY_FILE": "tls.key"}
    assert load(Settings, PREFIX, {**certificate, PREFIX + field: address})
    own = {"STORE": "kubernetes", "KEYS_SECRET": "keys", "TLS_NAMES": "supervisor.arena-system.svc, 10.0.0.1, ::1"}
    loaded = load(Settings, PREFIX, {**{PREFIX + name: value for name, value in own.items()}, PREFIX + field: address})
    assert loaded.tls_names == ("supervisor.arena-system.svc", "10.0.0.1", "::1")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.1.2.3:80", "[::1]:9000", "localhost:1"])
def test_a_loopback_address_is_accepted(address: str) -> None:
    settings = load(Settings, PREFIX, {PREFIX + "GRPC_ADDRESS": address, PREFIX + "HTTP_ADDRESS": address})
    assert str(settings.grpc) == str(settings.http) == address


@pytest.mark.parametrize(
    "variables",
    [
        {"WINDOWS_SECONDS": "1"},
        {"WINDOW_SECONDS": "-1"},
        {"WINDOW_SECONDS": "nan"},
        {"WINDOW_SECONDS": "9999"},
        {"RETENTION_HOURS": "1e6"},
        {"HEARTBEAT_SECONDS": "0"},
        {"GRPC_ADDRESS": "127.0.0.1"},
        {"HTTP_ADDRESS": "0.0.0.0:8471"},
        {"TLS_CERT_FILE": "tls.crt"},
        {"TLS_KEY_FILE": "tls.key"},
        {"LOG_FORMAT": "xml"},
        {"STORE": "etcd"},
        {"NAMESPACES": "team-a, Team B"},
        {"STORE_TIMEOUT_SECONDS": "0"},
        {"LEASE_SECONDS": "0.5"},
        {"LEADER_ELECTION": "perhaps"},
        {"PROBE_ADDRESS": "8472"},
        {"METRICS_ADDRESS": "8475"},
        {"RECLAIM_EVENTS": "reason=Other"},
        {"RECLAIM_EVENTS": "Reason:soon"},
        {"RECLAIM_EVENTS": "Reason:3601"},
        {"RECLAIM_EVENTS": "Reason:10,Reason:20"},
        {"RECLAIM_EVENTS": "SimulatedReclaim"},
        {"RECLAIM_TAINTS": "key=value"},
        {"RECLAIM_TAINTS": "key:soon"},
        {"RECLAIM_TAINTS": "key:3601"},
        {"RECLAIM_TAINTS": "key:10,key"},
        {"AGENT_ACCOUNT": "agent"},
        {"KEYS_SECRET": "keys"},
        {"KEYS_SECRET": "Keys", "STORE": "kubernetes"},
        {"KEYS_SECRET": "../pods", "STORE": "kubernetes"},
        {"TLS_NAMES": "localhost", "STORE": "kubernetes"},
        {"TLS_NAMES": "Upper.example", **SHARED},
        {"TLS_NAMES": "a b", **SHARED},
        {"TLS_NAMES": "*.example", **SHARED},
        {"TLS_NAMES": "10.0.0.300:8471", **SHARED},
        {"TLS_NAMES": "localhost", "TLS_CERT_FILE": "tls.crt", "TLS_KEY_FILE": "tls.key", **SHARED},
        {"TLS_LEAF_HOURS": "0"},
        {"WEBHOOK_NAME": "webhook", **SHARED},
        {"GRPC_ADDRESS": "0.0.0.0:8470", **SHARED},
        {"TOKEN_AUDIENCE": ""},
        {"PUBLIC_ADDRESS": "elastic-job-supervisor:8471"},
        {"PUBLIC_ADDRESS": "https://elastic-job-supervisor:8471/path"},
        {"WEBHOOK_ADDRESS": "127.0.0.1:0", "PUBLIC_ADDRESS": "https://supervisor:8471"},
        {"WEBHOOK_ADDRESS": "127.0.0.1:0", "STORE": "kubernetes"},
        {"WEBHOOK_ADDRESS": "0.0.0.0:0", "PUBLIC_ADDRESS": "https://supervisor:8471", "STORE": "kubernetes"},
    ],
)
def test_bad_settings_end_with_78(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown or out of bounds: the message names the variable, and nothing is made."""
    monkeypatch.setenv(PREFIX + "DATA_DIR", str(tmp_path / "data"))
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, value)
    assert main(["serve"]) == 78
    assert PREFIX in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_variable_ends_the_real_command_with_78(tmp_path: Path) -> None:
    outcome = command(tmp_path, "serve", WINDOWS_SECONDS="1")
    assert outcome.returncode == 78
    assert outcome.stderr == f"elastic-job-supervisor: {PREFIX}WINDOWS_SECONDS: no such setting\n"


@pytest.mark.parametrize(
    "field", ["GRPC_ADDRESS", "HTTP_ADDRESS", "PROBE_ADDRESS", "METRICS_ADDRESS", "WEBHOOK_ADDRESS"]
)
def test_the_setting_that_is_no_address_is_named(field: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(Settings, PREFIX, {PREFIX + field: "x"})
    assert str(raised.value) == f"{PREFIX}{field}: 'x' is not host:port"


@pytest.mark.parametrize("arguments", [["serve"], ["token", "viewer"]])
@pytest.mark.parametrize("directory", ["/dev/null", "/dev/null/x"])
def test_a_data_directory_that_is_none_is_said(arguments: list[str], directory: str, here: Here) -> None:
    said = f"elastic-job-supervisor: {PREFIX}DATA_DIR: {directory} is not a directory\n"
    assert here(*arguments, DATA_DIR=directory) == (78, "", said)


@pytest.mark.parametrize(
    ("days", "why"),
    [("0", "must be more than 0 and at most 36500 days"), ("soon", "'soon' is not a number of days, nor 'never'")],
)
def test_days_that_are_none_are_said(days: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["token", "viewer", "--days", days])
    assert ended.value.code == 64
    assert capsys.readouterr().err.splitlines()[0].endswith(f"argument --days: {why}")


def test_a_token_is_written_for_its_owner_alone(tmp_path: Path, here: Here) -> None:
    file = tmp_path / "gpu-1.token"
    file.write_text("old")
    before = os.umask(0)
    try:
        outcome = here("token", "agent", "--node", "gpu-1", "--out", str(file), DATA_DIR=str(tmp_path / "d"))
    finally:
        os.umask(before)
    assert outcome[:2] == (0, "")
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text("utf-8").strip()
    assert Tokens.load(tmp_path / "d").authenticate(f"Bearer {token}") == AgentPrincipal(Host("gpu-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "gpu-1.token"]


@pytest.mark.parametrize(("out", "why"), [("/dev/null", "is not a file"), ("none/x", "No such file or directory")])
def test_a_token_that_cannot_be_written_is_said(tmp_path: Path, out: str, why: str, here: Here) -> None:
    code, _, said = here("token", "viewer", "--out", out, DATA_DIR=str(tmp_path / "d"))
    assert code == 1
    assert why in said


@pytest.mark.parametrize("arguments", [[], ["serve", "--fast"], ["token"], ["token", "agent"], ["token", "god"]])
def test_wrong_usage_ends_with_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As documented, and not with the 2 of the library; in two lines, the second of which names the help."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 64
    assert [line.endswith("--help` for the usage.") for line in capsys.readouterr().err.splitlines()] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "principal"),
    [
        (["agent", "--node", "n1"], AgentPrincipal(Host("n1"))),
        (["launcher", "--name", "me"], LauncherPrincipal("me")),
        (["viewer"], Viewer()),
        (["operator", "--name", "ann"], Operator(name="ann")),
    ],
)
def test_the_token_command_prints_a_token(
    arguments: list[str],
    principal: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is good for the supervisor of that data directory, also before its first start."""
    monkeypatch.setenv(PREFIX + "DATA_DIR", str(tmp_path / "data"))
    assert main(["token", *arguments, "--days", "never"]) == 0
    token = capsys.readouterr().out.strip()
    assert Tokens.load(tmp_path / "data").authenticate(f"Bearer {token}") == principal


def test_a_data_directory_that_cannot_be_used_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "supervisor.sqlite").write_bytes(b"something else" * 100)
    outcome = command(tmp_path, "serve", DATA_DIR=str(tmp_path))
    assert outcome.returncode == 1
    assert "cannot open the store" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """As `command`, in the test's own process: its exit code, output and errors."""

    def call(*arguments: str, **variables: str) -> tuple[int, str, str]:
        for name, value in variables.items():
            monkeypatch.setenv(PREFIX + name, value)
        return main(arguments), *capsys.readouterr()

    return call


def command(directory: Path, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **{PREFIX + name: value for name, value in variables.items()}}
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
