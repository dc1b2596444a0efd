"""The supervisor reads within bounds what processes report about agreed steps."""

import msgspec
import pytest

from supervisor.ingest.processes import PostedProcessReport


def _read(field: str, kind: str = "resumed") -> PostedProcessReport:
    report = f'{{"process": "p", "host": "n1", "rank": 0, "kind": "{kind}", {field}}}'
    return msgspec.json.decode(report, type=PostedProcessReport)


@pytest.mark.parametrize(("written", "read"), [("5e-324", None), ("0", None), ("0.0000001", None), ("0.25", 0.25)])
def test_a_pace_that_no_step_has_is_unknown(written: str, read: float | None) -> None:
    """The process stays covered: a hello is not refused because of a wrong measurement."""
    report = _read(f'"step_seconds": {written}, "epoch": 1, "answer": "declined", "step": 3', "agreement")
    answered = report.answered(0.0)
    assert answered is not None
    assert (report.statement().step_seconds, answered[1].step_seconds) == (read, read)


def test_a_process_states_what_it_has_measured() -> None:
    stated = _read('"start_seconds": 7.5, "change_seconds": 0.25').statement()
    assert (stated.start_seconds, stated.change_seconds) == (7.5, 0.25)


@pytest.mark.parametrize(
    "field",
    ['"step_seconds": 1e300', '"step_seconds": -1', '"change_seconds": 1e9', '"world_size": 65537', '"epoch": 1e20'],
)
def test_a_number_beyond_its_bound_is_refused(field: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        _read(field)
