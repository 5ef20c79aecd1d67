from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.kube.errors import BadRequest
from datum_compute.kube.selectors import FieldSelector, LabelSelector, Requirement

WEB = {"app": "web", "tier": "front", "example.com/zone": "a", "empty": "", "count": "5"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        # equality
        ("app=web", True),
        ("app==web", True),
        ("app=api", False),
        ("missing=web", False),
        ("app!=web", False),
        ("app!=api", True),
        ("missing!=web", True),  # what is not there is not equal
        ("empty=", True),
        ("app=", False),
        ("missing=", False),
        ("example.com/zone=a", True),
        # sets
        ("app in (web)", True),
        ("app in (api,web)", True),
        ("app in ( api , web )", True),
        ("app in(web)", True),
        ("app in (api)", False),
        ("missing in (web)", False),
        ("app notin (api)", True),
        ("app notin (web,api)", False),
        ("missing notin (web)", True),
        ("empty in (,a)", True),
        ("empty in ()", True),
        ("app in ()", False),
        # presence
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("! missing", True),
        ("!app", False),
        ("empty", True),
        # all of several
        ("app=web,tier=front", True),
        ("app=web , tier = back", False),
        ("app in (web,api),tier,!missing,example.com/zone!=b", True),
        ("in in (in),notin", False),
        # numbers
        ("count>4", True),
        ("count > 5", False),
        ("count<6", True),
        ("count<-1", False),
        ("app>1", False),
        ("missing<1", False),
    ],
)
def test_a_selector_matches_when_all_its_requirements_do(text: str, matches: bool) -> None:
    assert LabelSelector.parse(text).matches(WEB) is matches


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("=web", "=web"),
        ("app=web,", "app=web,"),
        ("app=web, ", "app=web, "),
        ("app=web,,tier", ",tier"),
        (",app", ",app"),
        ("app web", "app web"),
        ("app=web tier=front", "app=web tier=front"),
        ("app=web,tier in front", "tier in front"),
        ("app in (web", "app in (web"),
        ("app/a/b=c", "app/a/b=c"),
        ("app in", "app in"),
        ("!", "!"),
        ("!app=web", "!app=web"),
        ("app=web,count>x", "count>x"),
        ("app=we b", "app=we b"),
        ("-app", "-app"),
        ("app=web;drop", "app=web;drop"),
    ],
)
def test_a_selector_that_cannot_be_read_says_where(text: str, at: str) -> None:
    with pytest.raises(BadRequest) as refused:
        LabelSelector.parse(text)
    assert refused.value.message == f'unable to parse label selector "{text}" at "{at}"'


def test_a_long_selector_is_refused_without_trying_for_ever() -> None:
    with pytest.raises(BadRequest):
        LabelSelector.parse("a" * 50_000 + ">")
    with pytest.raises(BadRequest):
        LabelSelector.parse("a in (" + " " * 50_000)


@pytest.mark.parametrize(
    ("requirement", "text"),
    [
        (Requirement("a", "In", ("b",)), "a=b"),
        (Requirement("a", "In", ("b", "c")), "a in (b,c)"),
        (Requirement("a", "NotIn", ("b",)), "a notin (b)"),
        (Requirement("a", "Exists"), "a"),
        (Requirement("a", "DoesNotExist"), "!a"),
    ],
)
def test_a_requirement_is_written_as_it_is_read(requirement: Requirement, text: str) -> None:
    selector = LabelSelector((requirement, requirement))
    assert str(selector) == f"{text},{text}"
    assert LabelSelector.parse(str(selector)) == selector


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(BadRequest, match='"Near" is not a valid label selector operator'):
        Requirement("a", "Near", ("b",)).matches(WEB)


@pytest.mark.parametrize(
    ("labels", "matches"),
    [
        ({"app": "web", "city": "DFW"}, True),
        ({"app": "web", "city": "AMS"}, False),
        ({"city": "DFW"}, False),
        ({}, False),
    ],
)
def test_a_selector_of_an_object_joins_labels_and_expressions(labels: Mapping[str, str], matches: bool) -> None:
    selector = LabelSelector.of({"app": "web"}, [Requirement("city", "In", ("DFW", "SIN"))])
    assert selector.matches(labels) is matches


def test_the_order_of_match_labels_does_not_matter() -> None:
    assert LabelSelector.of({"b": "2", "a": "1"}) == LabelSelector.of({"a": "1", "b": "2"})
    assert str(LabelSelector.of({"b": "2", "a": "1"})) == "a=1,b=2"
    assert LabelSelector.of({}).matches({})


PREFIXES = st.just("") | st.from_regex(r"[a-z0-9]([a-z0-9-]{0,4}[a-z0-9])?(\.[a-z0-9]{1,3})?/", fullmatch=True)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?", fullmatch=True)
KEYS = st.builds(lambda prefix, name: prefix + name, PREFIXES, NAMES)
SINGLE_VALUES = st.from_regex(r"([a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?)?", fullmatch=True)
MANY_VALUES = st.lists(SINGLE_VALUES.filter(bool), min_size=1, max_size=3).map(tuple)
REQUIREMENTS = st.one_of(
    st.builds(Requirement, KEYS, st.just("In"), st.tuples(SINGLE_VALUES) | MANY_VALUES),
    st.builds(Requirement, KEYS, st.just("NotIn"), MANY_VALUES),
    st.builds(Requirement, KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
)


@settings(deadline=None)
@given(requirements=st.lists(REQUIREMENTS, max_size=4).map(tuple))
def test_any_selector_survives_being_written_and_read(requirements: tuple[Requirement, ...]) -> None:
    selector = LabelSelector(requirements)
    assert LabelSelector.parse(str(selector)) == selector


@settings(deadline=None)
@given(text=st.text("ab=!,()in \t-/", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(BadRequest):
        LabelSelector.parse(text).matches(WEB)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("metadata.name=web", True),
        ("metadata.name==web", True),
        ("metadata.name=api", False),
        ("metadata.name!=api", True),
        ("metadata.namespace=default", True),
        ("metadata.name=web,metadata.namespace=other", False),
        ("metadata.name=web,metadata.namespace!=other", True),
    ],
)
def test_fields_select_by_name_and_namespace(text: str, matches: bool) -> None:
    assert FieldSelector.parse(text).matches("default", "web") is matches


@pytest.mark.parametrize("text", ["spec.nodeName=a", "metadata.name", "metadata.name=a,status.phase!=b", "=a"])
def test_a_field_that_is_not_served_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="field label not supported"):
        FieldSelector.parse(text)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("spec.kind=Project", True),
        ("spec.kind!=Project", False),
        ("spec.kind=Project,metadata.name=web", True),
        ("spec.kind=Project,metadata.name=other", False),
        ("spec.count=3", True),
        ("spec.on=true", True),
        ("spec.missing=", True),
        ("spec.missing=x", False),
        ("spec.missing!=x", True),
        ("spec.kind.deeper=", True),
    ],
)
def test_a_kind_may_make_more_fields_selectable(text: str, matches: bool) -> None:
    fields = ("spec.kind", "spec.count", "spec.on", "spec.missing", "spec.kind.deeper")
    selector = FieldSelector.parse(text, fields)
    assert selector.needs_object
    assert selector.matches("default", "web", {"spec": {"kind": "Project", "count": 3, "on": True}}) is matches


def test_a_field_that_is_not_selectable_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadRequest, match=r'"spec.x"; use metadata.name, metadata.namespace or spec.kind'):
        FieldSelector.parse("spec.x=1", ("spec.kind",))
    assert not FieldSelector.parse("metadata.name=web").needs_object
