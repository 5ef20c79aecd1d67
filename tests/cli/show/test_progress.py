"""How a rollout is shown in a terminal: one row for each place, drawn anew; in a log it is tested with `deploy`."""

from collections.abc import Callable
from itertools import groupby

import pytest

from tests.cli.conftest import Compute, World, condition, nothing
from tests.cli.server import ApiServer


def rolling(world: World) -> None:
    world.workload(("AMS", "DFW"))
    world.observe()
    for city in ("AMS", "DFW"):
        world.deployment(city)
        world.report(city, 0, 0)


def screens(out: str) -> list[list[str]]:
    """What stood on the screen after each drawing."""
    first, *drawn = out.split("\x1b[J")
    return [first.splitlines(), *(part.rsplit("\r", 1)[0].splitlines() for part in drawn)]


def watched(compute: Compute, *words: str, steps: list[Callable[[], object]]) -> tuple[int, list[list[str]]]:
    """The screens without their summary, which has a running clock, and without repetitions."""
    result = compute("rollout", "shop", *words, tty=True, columns=80, steps=steps, environ={"NO_COLOR": "1"})
    uncounted = [screen[:-2] if screen and " done, " in screen[-1] else screen for screen in screens(result.out)]
    return result.code, [screen for screen, _ in groupby(uncounted)]


def test_every_place_keeps_its_row(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    steps: list[Callable[[], object]] = [
        nothing,
        lambda: world.report("DFW", 1, 1),
        lambda: world.report("DFW", 2, 2),
        lambda: world.report("AMS", 2, 2),
    ]
    code, (before, *drawn, end) = watched(compute, steps=steps)
    assert code == 0
    assert before[0] == 'Rolling workload "shop"'
    titles = "  PLACEMENT   CITY   DESIRED   UPDATED   READY   OLD   PHASE"
    pending = "  default     {}    2         0         0       0     Pending"
    updating = "  default     {}    2         1         1       0     Updating"
    done = "  default     {}    2         2         2       0     Done"
    assert drawn == [
        [titles, pending.format("AMS"), pending.format("DFW")],
        [titles, pending.format("AMS"), updating.format("DFW")],
        [titles, pending.format("AMS"), done.format("DFW")],
        [titles, done.format("AMS"), done.format("DFW")],
    ]
    assert end == ["Rollout complete in 8.0s."]


def test_the_cause_of_a_blocked_row_is_shown_below_it_until_it_clears(
    api: ApiServer, compute: Compute, world: World
) -> None:
    rolling(world)
    world.report("AMS", 2, 2)
    world.report("DFW", 0, 0, available=condition("Available", "False", "QuotaNotGranted", "none left"))
    steps: list[Callable[[], object]] = [
        *[nothing] * 17,
        lambda: world.report("DFW", 1, 1),
        lambda: world.report("DFW", 2, 2),
    ]
    _, (_, *drawn, _) = watched(compute, steps=steps)
    blocked = [screen for screen in drawn if any("Blocked" in row for row in screen)]
    assert [screen[2:] for screen in blocked] == [
        [
            "  default     DFW    2         0         0       0     Blocked",
            "    shop is on its way in DFW: instances are waiting for quota, for 32s. Nothing",
            "      to do.",
            "    none left",
            "    The rollout resumes on its own when this clears.",
        ]
    ]
    assert len(drawn[-1]) == 3


def test_a_ctrl_c_is_erased_from_the_screen(api: ApiServer, compute: Compute, world: World) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    rolling(world)
    code, drawn = watched(compute, steps=[interrupt])
    assert code == 0
    assert drawn[-1] == [
        "Detached. Rollout continues in background.",
        "Run 'compute rollout status shop' to watch progress.",
    ]


def test_after_a_timeout_the_error_is_below_the_drawing(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    code, drawn = watched(compute, "--timeout=2s", steps=[nothing])
    assert (code, drawn[-1]) == (5, [])


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"DATUM_COMPUTE_QUIET": "1"}])
def test_a_screen_that_cannot_be_redrawn_gets_lines(
    api: ApiServer, compute: Compute, world: World, environ: dict[str, str]
) -> None:
    rolling(world)
    done = [lambda: world.report("AMS", 2, 2), lambda: world.report("DFW", 2, 2)]
    result = compute("rollout", "shop", tty=True, columns=80, steps=done, environ=environ)
    assert result.code == 0
    assert "\x1b[J" not in result.out


def test_with_json_the_rows_of_a_deploy_are_drawn_on_stderr(api: ApiServer, compute: Compute) -> None:
    world = World(api)

    def finish() -> None:
        world.observe()
        world.deployment("DFW", replicas=1)
        world.report("DFW", 1, 1, desired=1)

    words = ("deploy", "shop", "--image=x", "--city=DFW", "-y", "--no-save", "-o", "name")
    result = compute(*words, tty=True, steps=[finish])
    assert result.out == "workload/shop\n"
    assert "\x1b[J" in result.err
