"""Removal needs a positive sign, and never takes too much at once."""

import pytest

from datum_compute.federation.removal import (
    AT_ONCE,
    WINDOW_SECONDS,
    Brake,
    Held,
    Missing,
    Sign,
    is_mass,
    is_released,
    verdict,
)
from datum_compute.kube.meta import KubeObject, ObjectMeta

ON, OFF = True, False
FREE, BRAKED = False, True


@pytest.mark.parametrize(
    ("sign", "enabled", "braked", "expected"),
    [
        (Sign.NONE, ON, FREE, Held.UNPROVEN),
        (Sign.NONE, ON, BRAKED, Held.UNPROVEN),
        (Sign.NONE, OFF, FREE, Held.UNPROVEN),
        (Sign.NONE, OFF, BRAKED, Held.UNPROVEN),
        (Sign.WITHDRAWN, ON, FREE, None),
        (Sign.WITHDRAWN, ON, BRAKED, Held.BRAKED),
        (Sign.WITHDRAWN, OFF, FREE, Held.SWITCHED_OFF),
        (Sign.WITHDRAWN, OFF, BRAKED, Held.SWITCHED_OFF),
        (Sign.RELEASED, ON, FREE, None),
        (Sign.RELEASED, ON, BRAKED, None),
        (Sign.RELEASED, OFF, FREE, None),
        (Sign.RELEASED, OFF, BRAKED, None),
    ],
)
def test_removal_needs_a_sign_and_a_release_overrides_everything(
    sign: Sign, enabled: bool, braked: bool, expected: Held | None
) -> None:
    assert verdict(sign, enabled=enabled, braked=braked) is expected


@pytest.mark.parametrize(
    ("missing", "removed", "total", "expected"),
    [
        (1, 0, 1, False),
        (10, 0, 10, False),
        (11, 0, 11, True),
        (11, 0, 109, True),
        (11, 0, 110, False),
        (100, 0, 1000, False),
        (101, 0, 1000, True),
        (6, 4, 100, False),
        (6, 5, 100, True),
        (50, 50, 950, False),
        (50, 51, 949, True),
    ],
)
def test_a_mass_removal_is_more_than_ten_and_more_than_a_tenth(
    missing: int, removed: int, total: int, expected: bool
) -> None:
    assert is_mass(missing, removed, total) is expected


def test_removals_count_for_ten_minutes() -> None:
    brake = Brake()
    for _ in range(AT_ONCE):
        brake.removed(now=0.0)
    assert brake.holds(1, 20, now=WINDOW_SECONDS - 1)
    assert not brake.holds(1, 20, now=WINDOW_SECONDS)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("True", False), ("", False), ("false", False)])
def test_an_operator_releases_by_an_annotation(value: str, expected: bool) -> None:
    held = KubeObject(ObjectMeta(annotations={"compute.datumapis.com/release": value}))
    assert is_released(held) is expected
    assert not is_released(KubeObject(ObjectMeta()))


def test_a_missing_object_is_remembered_from_the_first_time_and_reported_once() -> None:
    missing: Missing[str] = Missing()
    assert missing.since("web", 5.0) == 5.0
    assert missing.since("web", 9.0) == 5.0
    assert missing.since("api", 9.0) == 9.0
    assert (missing.count(before=4.9), missing.count(before=5.0), missing.count(before=9.0)) == (0, 1, 2)
    assert missing.held() == {}
    assert missing.hold("web", Held.UNPROVEN)
    assert not missing.hold("web", Held.UNPROVEN)
    assert missing.hold("web", Held.BRAKED)
    assert missing.held() == {Held.BRAKED: 1}
    missing.forget("web")
    assert ("web" in missing, "api" in missing) == (False, True)
    assert missing.held() == {}
    assert missing.since("web", 11.0) == 11.0
