from datum_compute.runtime.missed import Missed
from datum_compute.runtime.requests import Request


def test_missed_requests_of_a_plane_are_returned_once() -> None:
    missed = Missed()
    for plane, name in (("a", "x"), ("b", "y"), ("a", "x"), ("a", "z")):
        missed.add(Request(plane, "", name))
    assert len(missed) == 3
    assert missed.take("a") == [Request("a", "", "x"), Request("a", "", "z")]
    assert missed.take("a") == []
    assert len(missed) == 1


def test_beyond_its_bound_it_only_knows_that_requests_were_missed() -> None:
    missed = Missed(at_most=10)
    for number in range(10):
        missed.add(Request(f"p{number}", "", "x"))
    assert missed.take("p3") == [Request("p3", "", "x")]
    for number in range(100):
        missed.add(Request(f"q{number}", "", "x"))
    assert len(missed) == 0
    assert missed.take("p4") is None
    assert missed.take("never-heard-of") is None
