"""`report --prices`: what was held cost, what it would have cost on demand, and what is not known."""

from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

from job_supervisor.cli import pricing
from job_supervisor.cli.errors import CliExitCode
from job_supervisor.cli.http_backend import HttpBackend
from supervisor.domain.ids import JobName
from supervisor.observability.prices import MachineTypePrices, PriceTable, read_prices
from supervisor.observability.views import HeldView, LedgerJobView, LedgerView
from tests.job_supervisor.cli.cli_running import run

_EXAMPLE = Path(__file__).parents[3] / "examples" / "report" / "prices.yaml"
_H = 3600.0
_SPOT = HeldView(
    zone="cn-hangzhou-b",
    instance_type="ecs.gn7i-c8g1.2xlarge",
    price_class="spot",
    gpus=1.0,
    worker_seconds=100 * _H,
)


def _held(hours: float, **changes: object) -> HeldView:
    return replace(_SPOT, worker_seconds=hours * _H, **changes)


def _cost(held: HeldView) -> tuple[float | None, float | None]:
    [cost] = pricing.costs([LedgerJobView(job=JobName("j"), worker_seconds={}, machines=[held])], _prices())
    return cost.cost, cost.on_demand


def _prices() -> PriceTable:
    return read_prices(_EXAMPLE)


@pytest.mark.parametrize(
    ("held", "cost"),
    [
        (_SPOT, (310.0, 1050.0)),
        (_held(100, price_class="on_demand"), (1050.0, 1050.0)),
        (_held(100, zone="cn-hangzhou-h"), (280.0, 1050.0)),
        (_held(10, instance_type="ecs.gn7e-c16g1.16xlarge", gpus=2.0), (175.0, 700.0)),
        (_held(10, instance_type="ecs.gn7e-c16g1.16xlarge", gpus=None), (None, None)),
        (_held(10, instance_type="ecs.gn7e-c16g1.16xlarge", gpus=0.0), (None, None)),
        (_held(100, gpus=None), (310.0, 1050.0)),
        (_held(10, price_class="unknown"), (None, 105.0)),
        (_held(10, price_class="a later one"), (None, 105.0)),
        (_held(10, instance_type="ecs.other"), (None, None)),
        (_held(10, instance_type=""), (None, None)),
    ],
    ids=[
        "spot",
        "on demand",
        "its zone",
        "part of it",
        "which part",
        "no part that is counted",
        "a machine with one",
        "which class",
        "later",
        "which type",
        "unknown",
    ],
)
def test_a_price_is_that_of_the_type_and_zone_and_nothing_is_guessed(
    held: HeldView, cost: tuple[float | None, float | None]
) -> None:
    assert _cost(held) == pytest.approx(cost)


def test_without_gpus_a_worker_has_a_machine_to_itself() -> None:
    table = PriceTable(
        as_of=date(2026, 11, 1), currency="EUR", machines=[MachineTypePrices(type="p5", spot=2.0, on_demand=8.0)]
    )
    job = LedgerJobView(job=JobName("j"), worker_seconds={}, machines=[_held(3, instance_type="p5", gpus=None)])
    [cost] = pricing.costs([job], table)
    assert (cost.cost, cost.on_demand, cost.gpu_hours) == (6.0, 24.0, None)


def _ledger(monkeypatch: pytest.MonkeyPatch, *machines: HeldView) -> None:
    async def ledger(_backend: HttpBackend, since: float, _until: float | None, **_by: object) -> LedgerView:
        half = [replace(each, worker_seconds=each.worker_seconds / 2) for each in machines]
        seconds = {"training": 40 * _H, "stopping": 10 * _H}
        jobs = [LedgerJobView(job=JobName(name), worker_seconds=seconds, machines=half) for name in ("a", "b")]
        return LedgerView(since=since, until=since + 10 * _H, counted_seconds=10 * _H, jobs=jobs)

    monkeypatch.setattr(HttpBackend, "ledger", ledger)


@pytest.mark.usefixtures("served")
async def test_what_was_paid_and_what_an_hour_of_training_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, _SPOT)
    said = await run("report", "--data-dir", tmp_path, "--prices", str(_EXAMPLE))
    told = " ".join(said.out.split())
    assert "ecs.gn7i-c8g1.2xlarge cn-hangzhou-b spot 100.0 h 100.0 h 310.00 1,050.00" in told
    assert (
        "It cost 310.00 CNY at the prices of 2026-11-01, and would have cost 1,050.00 CNY on demand, 70.5 % less."
        in told
    )
    assert "An hour in which a worker trained cost 3.88 CNY; on demand, where no hour is lost, 10.50 CNY." in told
    said = await run("report", "--data-dir", tmp_path, "--prices", str(_EXAMPLE), "-o", "json")
    [machine] = said.json["machines"]
    assert (machine["cost"], machine["on_demand_cost"], machine["gpu_hours"]) == pytest.approx((310.0, 1050.0, 100.0))
    assert (said.json["currency"], said.json["prices_as_of"]) == ("CNY", "2026-11-01")


@pytest.mark.usefixtures("served")
async def test_what_has_no_price_is_said_and_in_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ledger(monkeypatch, _SPOT, _held(7, instance_type="", zone="", price_class="unknown", gpus=None))
    said = await run("report", "--data-dir", tmp_path, "--prices", str(_EXAMPLE))
    told = " ".join(said.out.split())
    assert "unknown - unknown 7.0 h - unknown unknown" in told
    assert "It cost 310.00 CNY" in told
    assert "For 7.0 h of workers the price is not known; they are not in these sums." in told
    assert "An hour in which a worker trained" not in told


@pytest.mark.usefixtures("served")
async def test_a_few_seconds_without_a_price_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of a pod is not known in its first seconds."""
    for hours, is_said in ((0.01, False), (0.5, True), (2.0, True)):
        _ledger(monkeypatch, _SPOT, _held(hours, instance_type=""))
        said = await run("report", "--data-dir", tmp_path, "--prices", str(_EXAMPLE))
        assert ("the price is not known" in said.out) is is_said
        assert ("An hour in which a worker trained cost 3.88 CNY" in said.out) is (hours < 1.0)


@pytest.mark.usefixtures("served")
async def test_without_prices_machines_are_shown_only_if_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ledger(monkeypatch, _SPOT)
    said = await run("report", "--data-dir", tmp_path)
    assert "MACHINES" not in said.out
    said = await run("report", "--data-dir", tmp_path, "-o", "wide")
    assert "ecs.gn7i-c8g1.2xlarge cn-hangzhou-b spot 100.0 h 100.0 h" in " ".join(said.out.split())
    assert "cost" not in said.out
    said = await run("report", "--data-dir", tmp_path, "-o", "json")
    assert "cost" not in said.json["machines"][0]


@pytest.mark.parametrize(
    "table",
    [
        "",
        "machines: [",
        "as_of: soon\ncurrency: CNY\nmachines: []",
        "as_of: 2026-11-01\ncurrency: CNY\nmachines: [{type: a, spot: -1}]",
        "as_of: 2026-11-01\ncurrency: CNY\nmachines: [{type: a, spot: .nan}]",
        "as_of: 2026-11-01\ncurrency: CNY\nmachines: [{type: a, price: 1}]",
        "as_of: 2026-11-01\ncurrency: CNY\nmachines: [{type: a, gpus: 0}]",
        "a: &a [1]\n" + "b: *a\n",
    ],
)
@pytest.mark.usefixtures("served")
async def test_a_table_that_is_none_is_refused(tmp_path: Path, table: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(table, encoding="utf-8")
    said = await run("report", "--data-dir", tmp_path, "--prices", str(file))
    assert (said.code, "is no table of prices: " in said.err) == (CliExitCode.USAGE, True)
    said = await run("report", "--data-dir", tmp_path, "--prices", str(tmp_path / "nothing"))
    assert said.code == CliExitCode.USAGE


def test_spot_may_cost_more_than_on_demand() -> None:
    """Such as in a zone where everybody wants it."""
    table = PriceTable(
        as_of=date(2026, 11, 1), currency="EUR", machines=[MachineTypePrices(type="p5", spot=9.0, on_demand=8.0)]
    )
    job = LedgerJobView(job=JobName("j"), worker_seconds={}, machines=[_held(1, instance_type="p5")])
    told = pricing.for_people(pricing.costs([job], table), table, 0.0, 0.0)
    assert "12.5 % more" in str(told)


@pytest.mark.parametrize(
    ("trained", "unmeasured", "said"),
    [(0.0, 50.0, "at least 6.20 CNY"), (50.0, 50.0, "3.10 to 6.20 CNY"), (100.0, 0.0, "trained cost 3.10 CNY")],
)
def test_what_an_hour_of_training_cost_is_as_uncertain_as_the_training(
    trained: float, unmeasured: float, said: str
) -> None:
    job = LedgerJobView(job=JobName("j"), worker_seconds={}, machines=[_SPOT])
    told = pricing.for_people(pricing.costs([job], _prices()), _prices(), trained * _H, unmeasured * _H)
    assert said in str(told)
