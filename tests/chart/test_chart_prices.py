"""Prices of machines: a file that the supervisor can read, as the report reads it."""

import json
from pathlib import Path
from typing import Any

import msgspec

from charts.files import CHART
from supervisor.observability.prices import MachineTypePrices, read_prices
from tests.chart.chart_rendering import Helm, environment, one, pod_of

_EXAMPLE = Path(__file__).parents[2] / "examples" / "report" / "prices.yaml"


def test_the_table_of_the_report_is_the_value_of_the_chart(helm: Helm, tmp_path: Path) -> None:
    """Its day is no string in YAML, and a string in JSON."""
    table = msgspec.yaml.decode(_EXAMPLE.read_bytes())
    objects = helm.render({"prices": json.loads(json.dumps(table, default=str))})
    pod, deployment = pod_of(one(objects, "Deployment")), one(objects, "Deployment")
    path = Path(environment(deployment)["JOB_SUPERVISOR_PRICES_FILE"])
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "prices"]
    assert (str(path.parent), mount["readOnly"]) == (mount["mountPath"], True)
    (tmp_path / path.name).write_text(one(objects, "ConfigMap", "elastic-job-supervisor-prices")["data"][path.name])
    assert read_prices(tmp_path / path.name) == read_prices(_EXAMPLE)


def test_a_change_of_the_prices_starts_new_pods(helm: Helm) -> None:
    def annotations(spot: float) -> Any:
        prices = {"as_of": "2026-11-01", "currency": "EUR", "machines": [{"type": "big", "spot": spot}]}
        return one(helm.render({"prices": prices}), "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations(1.0) != annotations(2.0)


def test_the_schema_knows_every_key_of_a_machine() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    machine = schema["properties"]["prices"]["properties"]["machines"]["items"]["properties"]
    assert set(machine) == set(MachineTypePrices.__struct_fields__)
