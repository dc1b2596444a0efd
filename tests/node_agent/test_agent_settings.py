"""The agent's settings: defaults, valid values and refused ones."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from node_agent.notices import MetadataMode
from node_agent.settings import PREFIX, AgentSettings, PodsMode, SourceKind, load
from servicekit.logs import LogFormat, LogLevel
from servicekit.settings import SettingsError, describe

LEAST = {
    "NODE_AGENT_NODE_NAME": "n1",
    "NODE_AGENT_SUPERVISOR": "127.0.0.1:7000",
    "NODE_AGENT_TOKEN_FILE": "token",
}


def test_the_promised_defaults() -> None:
    assert load(LEAST) == AgentSettings(
        node_name="n1",
        supervisor="127.0.0.1:7000",
        token_file=Path("token"),
        ca_file=None,
        node_uid="",
        sources=(SourceKind.AUTO,),
        metadata_url="http://100.100.100.200",
        metadata_mode=MetadataMode.AUTO,
        aws_metadata_url="http://169.254.169.254",
        azure_metadata_url="http://169.254.169.254",
        azure_acknowledge=False,
        gcp_metadata_url="http://169.254.169.254",
        tencent_metadata_url="http://metadata.tencentyun.com",
        volcengine_metadata_url="http://100.96.0.96",
        volcengine_metadata_mode=MetadataMode.AUTO,
        file_path=None,
        pods=PodsMode.AUTO,
        not_spot_labels=("node.alibabacloud.com/spot-strategy=NoSpot",),
        account_dir=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        api_timeout_seconds=5.0,
        poll_seconds=1.0,
        max_lead_seconds=3600.0,
        outbox_limit=1024,
        heartbeat_seconds=300.0,
        watchdog_seconds=10.0,
        probe_address="",
        metrics_address="",
        log_format=LogFormat.AUTO,
        log_level=LogLevel.INFO,
        failpoint="",
    )


@pytest.mark.parametrize("variable", sorted(LEAST))
def test_what_must_be_set(variable: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        load({name: value for name, value in LEAST.items() if name != variable})


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"NODE_AGENT_NODE_NAME": ""}, "NODE_NAME"),
        ({"NODE_AGENT_NODE_NAME": "two words"}, "NODE_NAME"),
        ({"NODE_AGENT_NODE_UID": "two words"}, "NODE_UID"),
        ({"NODE_AGENT_POLL_SECONDS": "1.5"}, "POLL_SECONDS"),
        ({"NODE_AGENT_POLL_SECONDS": "0"}, "POLL_SECONDS"),
        ({"NODE_AGENT_SOURCES": ""}, "SOURCES"),
        ({"NODE_AGENT_SOURCES": "cloud"}, "SOURCES"),
        ({"NODE_AGENT_SOURCES": "aliyun,aliyun"}, "twice"),
        ({"NODE_AGENT_SOURCES": "file", "NODE_AGENT_NODE_UID": "n1"}, "FILE_PATH"),
        ({"NODE_AGENT_SOURCES": "file", "NODE_AGENT_FILE_PATH": "f"}, "NODE_UID"),
        ({"NODE_AGENT_METADATA_URL": "ftp://100.100.100.200"}, "METADATA_URL"),
        ({"NODE_AGENT_METADATA_URL": "100.100.100.200"}, "METADATA_URL"),
        ({"NODE_AGENT_METADATA_URL": "http://100.100.100.200/?a=b"}, "METADATA_URL"),
        ({"NODE_AGENT_AWS_METADATA_URL": "169.254.169.254"}, "AWS_METADATA_URL"),
        ({"NODE_AGENT_AZURE_METADATA_URL": "169.254.169.254"}, "AZURE_METADATA_URL"),
        ({"NODE_AGENT_GCP_METADATA_URL": "169.254.169.254"}, "GCP_METADATA_URL"),
        ({"NODE_AGENT_TENCENT_METADATA_URL": "metadata.tencentyun.com"}, "TENCENT_METADATA_URL"),
        ({"NODE_AGENT_VOLCENGINE_METADATA_URL": "100.96.0.96"}, "VOLCENGINE_METADATA_URL"),
        ({"NODE_AGENT_VOLCENGINE_METADATA_MODE": "secure"}, "VOLCENGINE_METADATA_MODE"),
        ({"NODE_AGENT_AZURE_ACKNOWLEDGE": "perhaps"}, "AZURE_ACKNOWLEDGE"),
        ({"NODE_AGENT_AZURE_ACKNOWLEDGE": "true", "NODE_AGENT_PODS": "off"}, "AZURE_ACKNOWLEDGE needs PODS"),
        ({"NODE_AGENT_SOURCES": "auto,aws"}, "SOURCES: auto finds the cloud by itself"),
        ({"NODE_AGENT_SOURCES": "auto,file"}, "FILE_PATH"),
        ({"NODE_AGENT_METADATA_MODE": "secure"}, "METADATA_MODE"),
        ({"NODE_AGENT_SUPERVISOR": "supervisor"}, "host:port"),
        ({"NODE_AGENT_SUPERVISOR": "10.0.0.1:7000"}, "CA_FILE"),
        ({"NODE_AGENT_SUPERVISOR": "supervisor.kube-system:7000"}, "CA_FILE"),
        ({"NODE_AGENT_PROBE_ADDRESS": "8080"}, "host:port"),
        ({"NODE_AGENT_METRICS_ADDRESS": "8080"}, "host:port"),
        ({"NODE_AGENT_WATCHDOG_SECONDS": "0.5"}, "WATCHDOG_SECONDS: must be 0 or at least 1"),
        ({"NODE_AGENT_WATCHDOG_SECONDS": "-1"}, "WATCHDOG_SECONDS"),
        ({"NODE_AGENT_POLLS": "1"}, "NODE_AGENT_POLLS"),
    ],
)
def test_what_is_refused(extra: dict[str, str], why: str) -> None:
    """A setting that cannot work stops the agent at its start, saying which."""
    with pytest.raises(SettingsError, match=why):
        load(LEAST | extra)


def test_what_is_wrong_is_said_by_name_and_with_the_choices() -> None:
    for variable, text, why in (
        ("SOURCES", "gcs", "'gcs' is none of auto, aliyun, aws, azure, gcp, tencent, volcengine, file"),
        ("POLL_SECONDS", "soon", "'soon' is not a number"),
        ("PROBE_ADDRESS", "x", "'x' is not host:port"),
        ("SUPERVISOR", "x", "'x' is not host:port"),
    ):
        with pytest.raises(SettingsError) as raised:
            load({**LEAST, f"NODE_AGENT_{variable}": text})
        assert str(raised.value) == f"NODE_AGENT_{variable}: {why}"


@pytest.mark.parametrize("arguments", [["--bogus"], ["serve"], ["-x", "y"]])
def test_wrong_usage_says_what_is_wrong(arguments: list[str]) -> None:
    command = (sys.executable, "-m", "node_agent", *arguments)
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (64, "")
    assert f"elastic-node-agent: unknown argument '{arguments[0]}'." in said.stderr


def test_the_help_names_every_exit_code() -> None:
    command = (sys.executable, "-m", "node_agent", "--help")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in said.split("exit codes:\n")[1].splitlines()[:5]] == ["0", "1", "3", "64", "78"]
    assert "  NODE_AGENT_POLL_SECONDS (1.0)\n" in said


def test_another_machine_needs_a_ca() -> None:
    extra = {"NODE_AGENT_SUPERVISOR": "supervisor.kube-system:7000", "NODE_AGENT_CA_FILE": "ca.crt"}
    assert load(LEAST | extra).ca_file == Path("ca.crt")


def test_two_clouds_may_be_asked() -> None:
    """Several sources are named with commas between; an IPv6 address stands in brackets."""
    extra = {"NODE_AGENT_SOURCES": "aliyun,aws", "NODE_AGENT_AWS_METADATA_URL": "http://[fd00:ec2::254]"}
    assert load(LEAST | extra).sources == (SourceKind.ALIYUN, SourceKind.AWS)


def test_a_file_may_stand_beside_auto() -> None:
    """The uid comes from the cloud, or where there is none from the node."""
    extra = {"NODE_AGENT_SOURCES": "auto,file", "NODE_AGENT_FILE_PATH": "f"}
    assert load(LEAST | extra).sources == (SourceKind.AUTO, SourceKind.FILE)


def test_labels_have_names_and_values() -> None:
    variable = "NODE_AGENT_NOT_SPOT_LABELS"
    assert load({**LEAST, variable: "a=b, c/d="}).not_spot_labels == ("a=b", "c/d=")
    assert load({**LEAST, variable: ""}).not_spot_labels == ()
    with pytest.raises(SettingsError, match=variable):
        load({**LEAST, variable: "a=b,NoSpot"})


def test_every_setting_is_described() -> None:
    lines = describe(AgentSettings, PREFIX).splitlines()
    assert [line.split()[0] for line in lines[::2]] == [
        f"NODE_AGENT_{field.name.upper()}" for field in fields(AgentSettings)
    ]
    assert all(len(line.strip()) > 15 for line in lines[1::2])
    assert "  NODE_AGENT_SOURCES (auto)" in lines
    assert "  NODE_AGENT_CA_FILE (empty)" in lines
    assert "  NODE_AGENT_NODE_NAME (must be set)" in lines
