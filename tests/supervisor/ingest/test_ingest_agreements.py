"""What processes say about agreed steps is read within bounds."""

import msgspec
import pytest

from supervisor.ingest.agreements import AgreementAnswer


@pytest.mark.parametrize(("written", "read"), [("5e-324", None), ("0", None), ("0.0000001", None), ("0.25", 0.25)])
def test_a_pace_that_no_step_has_is_unknown(written: str, read: float | None) -> None:
    """The process stays covered: a hello is not refused because of a wrong measurement."""
    said = msgspec.json.decode(f'{{"step_seconds": {written}}}', type=AgreementAnswer)
    assert (said.statement().step_seconds, said.measured.step_seconds) == (read, read)


@pytest.mark.parametrize(
    "field", ['"step_seconds": 1e300', '"step_seconds": -1', '"world_size": 65537', '"epoch": 1e20']
)
def test_a_number_beyond_its_bound_is_refused(field: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f"{{{field}}}", type=AgreementAnswer)
