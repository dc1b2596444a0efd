"""Rounds, and the lines that tell of them."""

import json
from typing import Any

import pytest
from kubeai.torchrun.member import (
    FollowingRound,
    MalformedRendezvous,
    RendezvousLine,
    RendezvousRound,
    RoundMember,
    RoundStoreAddress,
    parse_line,
)

TWO = RendezvousRound(
    7,
    (RoundMember("m1", "n1", "10.0.0.1", 2), RoundMember("m2", "n2", "10.0.0.2", 3)),
    store=RoundStoreAddress("10.0.0.1", 4000),
)


def test_a_round_survives_the_wire() -> None:
    about: dict[str, Any] = {"run": 1, "wanted": 7, "starts": True, "release": 143, "reason": "b"}
    message = json.loads(json.dumps({**about, "round": TWO.fields()}))
    assert parse_line(message) == RendezvousLine(1, 7, TWO, starts=True, release=143, reason="b")


def test_the_round_that_may_follow_survives_the_wire() -> None:
    message = {"run": 1, "wanted": 6, "following": {**TWO.fields(), "epoch": 4}}
    assert parse_line(json.loads(json.dumps(message))) == RendezvousLine(1, 6, following=FollowingRound(4, TWO))


def test_a_member_is_found_by_its_id() -> None:
    assert (TWO.index_of("m2"), TWO.index_of("m3")) == (1, None)


@pytest.mark.parametrize(
    "fault",
    [
        {"wanted": None},
        {"wanted": -1},
        {"wanted": True},
        {"wanted": "7"},
        {"run": None},
        {"release": "0"},
        {"round": []},
        {"round": {"number": 1}},
        {"round": {"number": 0, "members": TWO.fields()["members"]}},
        {"round": {"number": 1, "members": []}},
        {"round": {"number": 1, "members": [{"member": "m1"}]}},
        {"round": {**TWO.fields(), "store": {"address": "10.0.0.1"}}},
        {"round": {**TWO.fields(), "store": "10.0.0.1"}},
        {"following": TWO.fields()},
        {"following": {"epoch": 4}},
        {"following": 4},
    ],
)
def test_a_malformed_line_is_told_from_a_good_one(fault: dict[str, Any]) -> None:
    with pytest.raises(MalformedRendezvous):
        parse_line({"run": 1, "wanted": 7, "round": TWO.fields(), **fault})
