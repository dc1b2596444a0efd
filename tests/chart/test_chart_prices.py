"""Prices of machines: a file that the supervisor can read, as the report reads it."""

import itertools
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from charts.files import CHART
from supervisor.observability.prices import MachineTypePrices, PriceTable, read_prices
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


def test_the_schema_takes_the_days_that_the_supervisor_takes() -> None:
    """But for the 29th of a February: a pattern does not count years."""
    prices = json.loads((CHART / "values.schema.json").read_text("utf-8"))["properties"]["prices"]["properties"]
    for month, day in itertools.product(range(14), range(33)):
        text = f"2028-{month:02}-{day:02}"
        try:
            is_day = bool(date.fromisoformat(text))
        except ValueError:
            is_day = False
        assert bool(re.search(prices["as_of"]["pattern"], text)) is is_day, text
    currency = msgspec.json.schema(PriceTable)["$defs"]["PriceTable"]["properties"]["currency"]
    assert prices["currency"]["maxLength"] == currency["maxLength"]


def test_the_schema_knows_every_key_of_a_machine() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    machine = schema["properties"]["prices"]["properties"]["machines"]["items"]["properties"]
    assert set(machine) == set(MachineTypePrices.__struct_fields__)
