"""Which step a renewal takes next."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.operator.rotation import Contents, Serving, Step, after, next_step

START = datetime(2026, 6, 1, tzinfo=UTC)
VALID = timedelta(days=300)
HOSTS = frozenset({"webhook-service.compute-system.svc"})


def serving(name: str = "a", begins: datetime = START, hosts: frozenset[str] = HOSTS) -> Serving:
    return Serving(b"certificate", b"key", name.encode(), begins, begins + VALID, hosts)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


A, B = serving("a"), serving("b", day(200))
ONLY_A = Contents(A, None, (b"a",))
BOTH_SERVE_A = Contents(A, B, (b"b", b"a"))
BOTH_SERVE_B = Contents(B, None, (b"b", b"a"))


@pytest.mark.parametrize(
    ("contents", "now", "noticed", "step"),
    [
        (Contents(), 0, False, Step.CREATE),
        (ONLY_A, 0, False, None),
        (ONLY_A, 199.9, True, None),
        (ONLY_A, 200, False, Step.PREPARE),
        (BOTH_SERVE_A, 200, False, None),
        (BOTH_SERVE_A, 201, True, Step.PROMOTE),
        (BOTH_SERVE_B, 201, False, None),
        (BOTH_SERVE_B, 202, True, Step.RETIRE),
        (BOTH_SERVE_A, 300, False, Step.PROMOTE),  # the current one has expired
        (ONLY_A, 300, False, Step.CREATE),
        (BOTH_SERVE_A, 500, True, Step.CREATE),  # nobody was there in time
        (ONLY_A, -1, False, Step.CREATE),  # issued when the clock was wrong
        (BOTH_SERVE_A, 100, True, Step.RETIRE),  # so was the prepared one
    ],
)
def test_the_next_step_follows_from_what_is_stored_and_the_time(
    contents: Contents, now: float, noticed: bool, step: Step | None
) -> None:
    assert next_step(contents, day(now), HOSTS, noticed=noticed) is step


def test_a_certificate_that_lacks_a_host_is_replaced_like_an_old_one() -> None:
    more = HOSTS | {"compute.example"}
    assert next_step(ONLY_A, day(1), more, noticed=False) is Step.PREPARE
    assert next_step(ONLY_A, day(1), frozenset(), noticed=True) is None, "one host too many harms nobody"


def test_a_prepared_certificate_is_served_even_if_another_version_wants_other_hosts() -> None:
    assert next_step(BOTH_SERVE_A, day(201), frozenset({"other"}), noticed=False) is None
    assert next_step(BOTH_SERVE_A, day(201), frozenset({"other"}), noticed=True) is Step.PROMOTE


def test_keys_do_not_appear_in_logs() -> None:
    assert "key" not in repr(ONLY_A)


AUTHORITIES = st.sampled_from("abc")
SERVING = st.builds(serving, AUTHORITIES, st.integers(-400, 400).map(day), st.sampled_from([HOSTS, frozenset[str]()]))


@st.composite
def stored(draw: st.DrawFn) -> Contents:
    """Anything that can be read from the Secret: what no trusted authority has signed is read as None."""
    trusted = tuple(name.encode() for name in draw(st.lists(AUTHORITIES, unique=True)))
    current, prepared = (draw(st.none() | SERVING) for _ in range(2))
    return Contents(
        current if current is not None and current.authority in trusted else None,
        prepared if prepared is not None and prepared.authority in trusted else None,
        trusted,
    )


def _is_valid(serving: Serving | None, now: datetime) -> bool:
    return serving is not None and serving.begins <= now < serving.ends


@given(stored(), st.booleans())
def test_a_step_never_ends_the_trust_in_what_is_served(contents: Contents, noticed: bool) -> None:
    step = next_step(contents, START, HOSTS, noticed=noticed)
    if step is None:
        assert contents.current is not None
        return
    following = after(contents, step, lambda: serving("new"))
    assert following.current is not None
    assert following.current.authority in following.trusted
    assert _is_valid(following.current, START)
    if _is_valid(contents.current, START):
        assert contents.current is not None
        assert contents.current.authority in following.trusted, "replicas that are late still serve it"
        if following.current != contents.current:
            assert noticed, "callers must have had the time to trust it"
            assert set(following.trusted) == set(contents.trusted)


@given(stored())
def test_steps_lead_to_one_certificate_that_one_authority_signed(contents: Contents) -> None:
    names = iter("defghij")
    for _ in range(5):
        step = next_step(contents, START, HOSTS, noticed=True)
        if step is None:
            break
        contents = after(contents, step, lambda: serving(next(names)))
    assert step is None
    assert contents.current is not None
    assert contents.trusted == (contents.current.authority,)
    assert contents.current.hosts >= HOSTS


@given(stored(), st.booleans(), st.integers(0, 400))
def test_the_same_contents_are_never_changed_for_nothing(contents: Contents, noticed: bool, days: int) -> None:
    step = next_step(contents, day(days), HOSTS, noticed=noticed)
    if step is not None:
        assert after(contents, step, lambda: serving("new", day(days))) != contents
