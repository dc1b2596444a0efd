"""The fake supervisor that the library ships for tests."""

import threading

import pytest
from kubeai.elastic.testing import ALL, FakeSupervisor
from kubeai.elastic.wire import CallAddress, CallRefused, Unreachable, open_stream, post

LAUNCHER = {"job": "job", "instance": "a", "report": {"hosts": ["n1", "n2", "n3"]}}


def process(fake: FakeSupervisor) -> CallAddress:
    return CallAddress(fake.address, fake.job_token("job", 1))


def launcher(fake: FakeSupervisor) -> CallAddress:
    return CallAddress(fake.address, fake.launcher_token)


def test_it_leaves_no_thread_even_with_callers_that_hang() -> None:
    before = threading.active_count()
    with FakeSupervisor() as fake:
        stream = open_stream(process(fake), "/v1/processes/stream", {"process": "p"})
        fake.wait_for(lambda: fake.open_streams)
    assert threading.active_count() == before
    stream.close()


def test_it_comes_back_on_the_same_port_with_what_it_said_last() -> None:
    with FakeSupervisor() as fake:
        fake.direct(directive="CHECKPOINT", generation=9)
        address = fake.address
        fake.stop()
        with pytest.raises(Unreachable):
            post(process(fake), "/v1/processes/report", {})
        fake.start()
        assert fake.address == address
        with open_stream(process(fake), "/v1/processes/stream", {"process": "p"}) as stream:
            line = next(iter(stream))
        assert (line["directive"], line["generation"], line["job"], line["run"]) == ("CHECKPOINT", 9, "job", 1)


def test_it_speaks_to_one_process_by_id_or_rank_or_to_all() -> None:
    path = "/v1/processes/stream"
    with (
        FakeSupervisor() as fake,
        open_stream(process(fake), path, {"process": "p", "rank": 0}) as first,
        open_stream(process(fake), path, {"process": "q", "rank": None}) as second,
    ):
        fake.direct(0, directive="STOP")
        fake.direct("q", directive="LEAVE")
        post(process(fake), "/v1/processes/report", {"process": "q", "rank": 1})
        fake.direct(1, directive="CHECKPOINT")
        fake.direct(ALL, directive="RUN", release=True)
        fake.stop(goodbye=True)
        heard = [[line.get("directive", "-") for line in stream] for stream in (first, second)]
    assert heard == [["RUN", "STOP", "RUN", "-"], ["RUN", "LEAVE", "LEAVE", "RUN", "-"]]


def test_it_orders_launchers_about() -> None:
    """Run 1 on all their hosts until it is told otherwise."""
    with FakeSupervisor() as fake, open_stream(launcher(fake), "/v1/launchers/stream", LAUNCHER) as stream:
        fake.order("job", order="wait")
        fake.order("other", order="end")
        fake.order(order="run", run=2, exclusions=["n2"])
        post(launcher(fake), "/v1/launchers/report", {"instance": "a", "hosts": ["n4"]})
        fake.order(hosts=["n4", "n5"])
        fake.order()
        fake.stop(goodbye=True)
        lines = list(stream)[:-1]
    assert [(line["order"], line["run"], line["workers"], line["hosts"]) for line in lines] == [
        ("run", 1, 3, ["n1", "n2", "n3"]),
        ("wait", 1, 3, ["n1", "n2", "n3"]),
        ("run", 2, 2, ["n1", "n2", "n3"]),
        ("run", 1, 2, ["n4", "n5"]),
        ("run", 1, 1, ["n4"]),
    ]
    assert [line["token"] for line in lines] == [fake.job_token("job", run) for run in (1, 1, 2, 1, 1)]


def test_it_refuses_what_the_contract_refuses() -> None:
    """Wrong tokens and a second launcher of a live name, and whatever a test asks for."""
    with FakeSupervisor() as fake:
        with pytest.raises(CallRefused, match="bad_token"):
            open_stream(CallAddress(fake.address, "stranger"), "/v1/processes/stream", {"process": "p"})
        live = open_stream(launcher(fake), "/v1/launchers/stream", LAUNCHER)
        with live, pytest.raises(CallRefused, match="name_is_live"):
            open_stream(launcher(fake), "/v1/launchers/stream", {**LAUNCHER, "instance": "b"})
        fake.refuse(503, "not_serving", path="/v1/processes/")
        with pytest.raises(CallRefused, match="not_serving"):
            post(process(fake), "/v1/processes/report", {})
        assert post(launcher(fake), "/v1/launchers/report", {"job": "job"}) == {}
        fake.accept()
        assert post(process(fake), "/v1/processes/report", {}) == {}


def test_waiting_in_vain_says_what_was_heard() -> None:
    with FakeSupervisor() as fake:
        post(process(fake), "/v1/processes/report", {"kind": "left"})
        with pytest.raises(TimeoutError, match="left"):
            fake.wait_for(lambda: False, seconds=0.05)
