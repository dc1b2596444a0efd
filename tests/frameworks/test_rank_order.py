"""kubeai.torch: how much of a sharded state goes from rank to rank depends on the order of the ranks."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.decide.rank_order import RankedHost, next_order
from supervisor.domain.ids import Host
from tests.frameworks.frameworks_rounds import Rounds

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
_FEATURES, _HIDDEN, _FLOAT_BYTES, _TENSORS = 32, 3002, 8, 3
"""Those of the script; each parameter has two means of AdamW."""
_STATE_BYTES = _TENSORS * _FLOAT_BYTES * ((_FEATURES + 1) * _HIDDEN + _HIDDEN + 1)
_LEAVE, _JOIN, _STEPS = 13, 23, 40


def _order(before: str, after: str) -> str:
    """The ranks of the next round as the supervisor orders them."""

    def hosts(names: Sequence[str]) -> list[RankedHost]:
        return [RankedHost(Host(name), 1) for name in names]

    return "".join(next_order(hosts(before), hosts(after)))


def _changed(home: Path, root: Path, kind: str, left: str, joined: str) -> Rounds:
    """Two of five leave, and later another one comes; the next rounds have their ranks in these orders."""
    with Rounds(home, root / f"{kind}-{left}", kind, _STEPS, script="frameworks_handover.py") as rounds:
        rounds.agree(_LEAVE, _JOIN)
        rounds.start(*"abcde")
        rounds.start("f", joins=True)
        rounds.regroup_at(_LEAVE, *left)
        rounds.regroup_at(_JOIN, *joined)
        rounds.finish(*joined)
    return rounds


def _sent(rounds: Rounds) -> tuple[float, float]:
    """Which part of the state all ranks together have sent at the leave, and at the join."""
    sent = [0, 0]
    for name in "abcdef":
        step = -1 if name != "f" else _JOIN - 1
        for line in rounds.recorded(name):
            step = line["step"] if line["event"] == "end" else step
            if line["event"] == "sent":
                sent[step >= _LEAVE] += line["bytes"]
    return sent[0] / _STATE_BYTES, sent[1] / _STATE_BYTES


def _losses(rounds: Rounds) -> list[str]:
    """Those of rank 0, also after the join, when ranks have random numbers of other ranks or new ones."""
    return [line["loss"] for line in rounds.recorded("a") if line["event"] == "end"]


def test_the_order_of_ranks_decides_how_much_is_sent_and_no_result(fsdp2: Path, tmp_path: Path) -> None:
    """Ranks that stay change places, and no bit differs from a change through files. One joins between others."""
    left = _order("abcde", "abc")
    joined = _order(left, "abcf")
    assert (left, joined) == ("acb", "acfb")
    ordered = _changed(fsdp2, tmp_path, "memory", left, joined)
    assert _sent(ordered) == pytest.approx((3 / 5, 1 / 3), rel=0.1)
    assert len(_losses(ordered)) == _STEPS
    assert _losses(ordered) == _losses(_changed(fsdp2, tmp_path, "file", left, joined))
    assert _sent(_changed(fsdp2, tmp_path, "memory", "abc", "abcf")) == pytest.approx((11 / 15, 1 / 2), rel=0.1)
