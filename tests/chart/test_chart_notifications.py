"""Targets of notifications: a file that the supervisor can read, and URLs that only Secrets contain."""

import json
from pathlib import Path
from typing import Any

from charts.files import CHART
from supervisor.observability.notifications.config import Format, load
from supervisor.observability.notifications.message import NotificationKind
from tests.chart.chart_rendering import Helm, environment, one, pod_of

_TARGETS: list[dict[str, Any]] = [
    {"name": "team", "urlSecret": {"name": "slack", "key": "team-url"}, "format": "slack", "text": "{{ title }}\n"},
    {"name": "oncall", "urlSecret": {"name": "pager"}, "kinds": ["late-stop"], "body": {"a": ["{{ job }}"]}},
]
_NAME = "elastic-job-supervisor-notifications"


def test_the_file_is_read_and_each_url_is_where_it_says(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render({"notifications": {"cluster": "prod", "targets": _TARGETS}})
    pod, deployment = pod_of(one(objects, "Deployment")), one(objects, "Deployment")
    path = Path(environment(deployment)["JOB_SUPERVISOR_NOTIFICATIONS_FILE"])
    (volume,) = [each["projected"] for each in pod["volumes"] if each["name"] == "notifications"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "notifications"]
    assert (str(path.parent), mount["readOnly"]) == (mount["mountPath"], True)
    secrets = [source["secret"] for source in volume["sources"] if "secret" in source]
    assert all(secret["optional"] for secret in secrets)
    (tmp_path / path.name).write_text(one(objects, "ConfigMap", _NAME)["data"][path.name], encoding="utf-8")
    config = load(tmp_path / path.name)
    assert [target.url_file for target in config.targets] == [
        str(tmp_path / secret["items"][0]["path"]) for secret in secrets
    ]
    assert [(secret["name"], secret["items"][0]["key"]) for secret in secrets] == [
        ("slack", "team-url"),
        ("pager", "url"),
    ]
    assert (config.cluster, config.targets[0].text, config.targets[1].kinds) == (
        "prod",
        "{{ title }}\n",
        (NotificationKind.LATE_STOP,),
    )


def test_a_change_of_the_targets_starts_new_pods(helm: Helm) -> None:
    def annotations(targets: list[dict[str, Any]]) -> Any:
        objects = helm.render({"notifications": {"targets": targets}})
        return one(objects, "Deployment")["spec"]["template"]["metadata"].get("annotations")

    assert annotations([]) is None
    assert annotations(_TARGETS) != annotations(_TARGETS[:1])


def test_the_schema_knows_every_kind_and_format() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    target = schema["properties"]["notifications"]["properties"]["targets"]["items"]["properties"]
    assert target["kinds"]["items"]["enum"] == [str(kind) for kind in NotificationKind]
    assert sorted(target["format"]["enum"]) == sorted(Format)
