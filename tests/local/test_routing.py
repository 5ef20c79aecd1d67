"""Which instance answers a request: from the Host, the placements, and how each attempt ended."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.local.endpoints import Endpoint, Port
from datum_compute.local.routing import (
    Outcome,
    Turns,
    Wanted,
    candidates,
    explanation,
    goes_on,
    ordered_cities,
    parse_host,
    url,
)

WEB = [Port(53, "UDP", "127.0.0.1:1"), Port(8080, "TCP", "127.0.0.1:2"), Port(9090, "TCP", "127.0.0.1:3")]


def endpoint(city: str, number: int, state: str = "Available", ports: list[Port] = WEB) -> Endpoint:
    name = f"api-default-{city.lower()}-{number}"
    return Endpoint("demo", "default", "api", "default", city, name, state, state == "Available", ports)


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("api.localhost:8088", Wanted("api")),
        ("api.localhost", Wanted("api")),
        ("API.LocalHost:80", Wanted("api")),
        ("ams.api.localhost:8088", Wanted("api", "AMS")),
        ("a-b.localhost:9000", Wanted("a-b")),
        ("localhost:8088", None),
        ("127.0.0.1:8088", None),
        ("[::1]:8088", None),
        ("api.example.com", None),
        ("api.localhost.example.com", None),
        ("evil.example.localhost.com", None),
        ("a.b.c.localhost", None),
        ("ams-.api.localhost", None),
        ("-api.localhost", None),
        ("api..localhost", None),
        (".localhost", None),
        ("api.localhost:", None),
        ("api.localhost:80:80", None),
        ("api.localhost:x", None),
        ("api.localhost/", None),
        ("user@api.localhost", None),
        ("", None),
    ],
)
def test_only_names_of_workloads_are_taken_from_the_host(host: str, wanted: Wanted | None) -> None:
    assert parse_host(host) == wanted


@given(st.text(max_size=80))
def test_no_host_is_too_strange(host: str) -> None:
    wanted = parse_host(host)
    assert wanted is None or parse_host(wanted.workload + ".localhost") is not None


@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["", "AMS", "DFW", "C07"]),
    st.integers(1, 65535),
)
def test_the_address_of_a_workload_leads_back_to_it(workload: str, city: str, port: int) -> None:
    host = url(workload, port, city).removeprefix("http://").removesuffix("/")
    assert parse_host(host) == Wanted(workload, city)


def test_the_city_that_is_asked_for_comes_first_and_the_others_stay_in_order() -> None:
    assert ordered_cities(["DFW", "AMS", "SIN"], "") == ["DFW", "AMS", "SIN"]
    assert ordered_cities(["DFW", "AMS", "SIN"], "SIN") == ["SIN", "DFW", "AMS"]


def test_available_instances_take_turns_and_other_cities_come_after() -> None:
    endpoints = [endpoint("AMS", 0), endpoint("DFW", 0), endpoint("DFW", 1), endpoint("DFW", 2, "Starting")]
    turns, answers = Turns(), []
    for _ in range(4):
        found = list(candidates(endpoints, ["DFW", "AMS"], lambda city: turns.take("api", city)))
        answers.append([each.instance for each in found])
    first, second = ["api-default-dfw-0", "api-default-dfw-1"], ["api-default-dfw-1", "api-default-dfw-0"]
    assert answers == [[*names, "api-default-ams-0"] for names in (first, second, first, second)]


def test_no_turn_is_taken_in_a_city_that_need_not_be_asked() -> None:
    reached: list[str] = []

    def turn(city: str) -> int:
        reached.append(city)
        return 0

    first = next(candidates([endpoint("DFW", 0), endpoint("AMS", 0)], ["DFW", "AMS"], turn))
    assert (first.city, reached) == ("DFW", ["DFW"])


def test_an_instance_without_a_tcp_port_is_not_asked() -> None:
    endpoints = [endpoint("DFW", 0, ports=WEB[:1]), endpoint("DFW", 1, ports=[])]
    assert list(candidates(endpoints, ["DFW"], lambda city: 0)) == []
    assert endpoint("DFW", 0).web == WEB[1]


@given(st.lists(st.tuples(st.sampled_from(["DFW", "AMS", "SIN"]), st.booleans()), max_size=12), st.integers(0, 99))
def test_every_available_instance_is_asked_once_in_the_order_of_cities(
    drawn: list[tuple[str, bool]], turn: int
) -> None:
    endpoints = [
        endpoint(city, number, "Available" if available else "Pending")
        for number, (city, available) in enumerate(drawn)
    ]
    cities = ["SIN", "DFW", "AMS"]
    found = list(candidates(endpoints, cities, lambda city: turn))
    assert Counter(each.instance for each in found) == Counter(each.instance for each in endpoints if each.available)
    assert [cities.index(each.city) for each in found] == sorted(cities.index(each.city) for each in found)


@pytest.mark.parametrize(
    ("outcome", "method", "body_sent", "expected"),
    [
        (Outcome.UNREACHED, "GET", False, True),
        (Outcome.UNREACHED, "POST", False, True),
        (Outcome.BROKEN, "GET", False, True),
        (Outcome.BROKEN, "HEAD", False, True),
        (Outcome.BROKEN, "GET", True, False),
        (Outcome.BROKEN, "POST", False, False),
        (Outcome.BROKEN, "POST", True, False),
        (Outcome.BROKEN, "DELETE", False, False),
        (Outcome.SILENT, "GET", False, False),
    ],
)
def test_only_what_cannot_have_happened_twice_is_tried_again(
    outcome: Outcome, method: str, body_sent: bool, expected: bool
) -> None:
    assert goes_on(outcome, method, body_sent=body_sent) is expected


def test_every_city_has_a_line_that_says_why_it_does_not_answer() -> None:
    endpoints = [
        endpoint("DFW", 0),
        endpoint("DFW", 1, "Failed (crashing)"),
        endpoint("AMS", 0, ports=[]),
    ]
    failures = {"api-default-dfw-0": Outcome.UNREACHED}
    assert explanation("api", ["DFW", "AMS", "SIN"], endpoints, failures).splitlines() == [
        "api does not answer.",
        "  DFW: api-default-dfw-0 refused the connection, api-default-dfw-1 is not available: Failed (crashing)",
        "  AMS: api-default-ams-0 has no TCP port (deploy with --port)",
        "  SIN: there is no instance",
    ]
