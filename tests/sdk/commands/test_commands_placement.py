"""Where kubeai-each-host starts and ends the command, as a pure decision."""

from kubeai.elastic.commands.each_host import EachHostPlan, HostPlace, plan

RESTARTS = 1
NOW = 100.0
RUNS = HostPlace(running=True)
SUCCEEDED = HostPlace(code=0)
FAILED = HostPlace(code=1, failures=1, due=NOW)
GIVEN_UP = HostPlace(code=7, failures=2, due=NOW)


def planned(places: dict[str, HostPlace], granted: str = "ab", excluded: str = "") -> EachHostPlan:
    return plan(places, tuple(granted), frozenset(excluded), RESTARTS, NOW)


def test_the_command_is_started_on_each_host_of_the_list() -> None:
    """An excluded one, too: its elastic agent waits for a withdrawal."""
    assert planned({}, excluded="b").start == ("a", "b")


def test_a_running_command_is_left_alone_when_its_host_is_excluded() -> None:
    found = planned({"a": RUNS, "b": RUNS}, excluded="b")
    assert (found.start, found.end, found.code) == ((), (), None)


def test_a_host_that_is_not_granted_any_more_is_asked_to_end_once() -> None:
    first = planned({"a": RUNS, "b": RUNS}, granted="a")
    assert first.end == ("b",)
    assert planned(dict(first.places), granted="a").end == ()


def test_a_host_that_was_excluded_returns_as_another_machine() -> None:
    """Its command ended with the old machine, which counts as no failure of the new one."""
    gone = planned({"a": RUNS, "b": GIVEN_UP}, excluded="b")
    assert (gone.start, gone.code) == ((), None)
    back = planned(dict(gone.places))
    assert back.start == ("b",)
    assert back.places["b"].started().failures == 0


def test_a_host_that_was_not_granted_for_a_while_is_started_again() -> None:
    gone = planned({"a": RUNS, "b": FAILED}, granted="a")
    assert planned(dict(gone.places)).start == ("b",)


def test_a_host_that_is_granted_again_before_its_command_has_ended_is_started_afterwards() -> None:
    ending = planned({"a": RUNS, "b": RUNS}, granted="a").places["b"]
    assert planned({"a": RUNS, "b": ending.ended(-15, NOW + 1)}).start == ("b",)


def test_a_failed_command_is_started_again_once_it_is_due() -> None:
    early = planned({"a": RUNS, "b": HostPlace(code=1, failures=1, due=NOW + 5)})
    assert (early.start, early.at) == ((), NOW + 5)
    assert planned({"a": RUNS, "b": FAILED}).start == ("b",)


def test_a_command_that_failed_too_often_is_given_up() -> None:
    assert planned({"a": RUNS, "b": GIVEN_UP}).start == ()


def test_a_success_says_that_the_job_has_ended() -> None:
    """No host is started any more; the others are waited for."""
    assert planned({"a": SUCCEEDED}).start == ()
    assert planned({"a": SUCCEEDED, "b": RUNS}).code is None
    assert planned({"a": SUCCEEDED, "b": GIVEN_UP}).code == 0


def test_the_exit_code_is_that_of_a_command_that_was_given_up() -> None:
    assert planned({"a": GIVEN_UP, "b": GIVEN_UP}).code == GIVEN_UP.code


def test_nothing_has_ended_as_long_as_there_is_no_host() -> None:
    """Also where all machines are gone: kubeai-run ends the command if the job is to wait for others."""
    assert planned({}, granted="").code is None
    gone = planned({"a": FAILED, "b": FAILED}, excluded="ab")
    assert (gone.start, gone.code) == ((), None)
