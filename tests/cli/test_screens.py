"""What fits on a screen: narrow terminals, other character sets, long images and many cities."""

from collections.abc import Callable

import pytest

from datum_compute.api.workload import WORKLOAD
from tests.cli.commands.test_quota import usual, waiting
from tests.cli.conftest import Compute, World, condition, nothing
from tests.cli.server import ApiServer
from tests.cli.show.test_progress import screens

LONG = "registry.example/a-team/with-a-long-name/and-an-image-with-a-longer-one:2026-11-02"
NARROW = [50, 60]
CITIES = [f"C{number:02}" for number in range(30)]


def run(world: World, image: str) -> None:
    containers = [{"name": "app", "image": image}]
    world.api.patch(
        WORKLOAD, "shop", {"spec": {"template": {"spec": {"runtime": {"sandbox": {"containers": containers}}}}}}
    )


def deployed(compute: Compute, *images: str) -> None:
    for image in images:
        words = ("deploy", "shop", f"--image={image}", "--city=DFW", "--no-wait", "--no-save")
        assert compute(*words, environ={"DATUM_COMPUTE_ACTOR": "ann@example.com"}).code == 0


def columns_of(title: str) -> list[int]:
    """Where columns begin."""
    return [index for index, sign in enumerate(title) if sign != " " and title[max(index - 2, 0) : index].strip() == ""]


def test_columns_stand_under_their_titles_in_plain_ascii(world: World, compute: Compute) -> None:
    deployed(compute, "shop:1", "shop:2")
    title, *rows = compute("rollout", "history", "shop", encoding="ascii").lines
    for row in rows:
        assert all(row[start - 1 : start] == " " and row[start : start + 1].strip() for start in columns_of(title)[1:5])
    assert "->" in rows[0]
    assert rows[0].index("ann@example.com") == rows[1].index("ann@example.com") == title.index("BY")


@pytest.mark.parametrize("columns", NARROW)
def test_a_narrow_terminal_shows_every_phase_whole(world: World, compute: Compute, columns: int) -> None:
    world.workload()
    world.observe()
    for city in ("AMS", "DFW"):
        world.deployment(city)
        world.report(city, 1, 1)
    steps: list[Callable[[], object]] = [lambda: world.report("AMS", 2, 2), lambda: world.report("DFW", 2, 2)]
    result = compute("rollout", "shop", tty=True, columns=columns, steps=steps, environ={"NO_COLOR": "1"})
    lines = [line for screen in screens(result.out)[1:] for line in screen]
    assert max(map(len, lines)) <= columns
    assert {line.split()[-1] for line in lines if line.split()[1:2] == ["AMS"]} == {"Updating", "Done"}
    assert lines[0].split()[-1] == "PHASE"


@pytest.mark.parametrize("columns", NARROW)
@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "…"), ("ascii", "...")])
def test_a_long_image_is_cut_in_the_middle_with_a_mark(
    world: World, compute: Compute, columns: int, encoding: str, mark: str
) -> None:
    world.settled()
    run(world, LONG)
    result = compute("workloads", tty=True, columns=columns, encoding=encoding, environ={"NO_COLOR": "1"})
    title, row, *_ = result.lines
    assert max(len(title), len(row)) <= columns
    image = next(word for word in row.split() if mark in word)
    begin, end = image.split(mark)
    assert begin
    assert LONG.removeprefix("registry.example/").startswith(begin)
    assert end
    assert LONG.endswith(end)


@pytest.mark.parametrize("columns", NARROW)
def test_the_tables_of_quota_fit_a_narrow_terminal(api: ApiServer, compute: Compute, columns: int) -> None:
    usual(api)
    waiting(api)
    result = compute("quota", tty=True, columns=columns, environ={"NO_COLOR": "1"})
    assert max(map(len, result.lines)) <= columns
    assert [line.split() for line in result.lines if line.startswith("Memory")] == [
        ["Memory", "MiB", "16384", "8192", "8192", "…"]
    ]


@pytest.mark.parametrize("words", [("status", "shop"), ("instances", "describe", "shop-default-ams-0")], ids=" ".join)
def test_explanations_continue_below_themselves(world: World, compute: Compute, words: tuple[str, ...]) -> None:
    world.workload(["AMS"], 1)
    world.observe()
    world.deployment("AMS", replicas=1)
    world.report("AMS", 0, 0, desired=1)
    message = "The configuration of shop-default-ams-0 refers to the ConfigMap shop-settings, which does not exist"
    world.instance("AMS", 0, condition("Ready", "False", "ConfigurationError", message))
    explanation, *_ = compute(*words, tty=True, columns=60, environ={"NO_COLOR": "1"}).out.partition("Runtime")
    assert max(map(len, explanation.splitlines())) <= 60
    assert message in " ".join(explanation.split())


def test_what_does_not_fit_a_screen_that_is_drawn_again_is_marked(world: World, compute: Compute) -> None:
    world.settled()

    def stop() -> None:
        raise KeyboardInterrupt

    result = compute("workloads", "-w", tty=True, columns=30, steps=[stop], environ={"NO_COLOR": "1"})
    [_, screen, *_] = screens(result.out)
    assert [len(line) for line in screen[:2]] == [30, 30]
    assert [line[-1] for line in screen[:2]] == ["…", "…"]


@pytest.mark.parametrize("columns", [60, 80])
def test_a_history_keeps_the_part_of_an_image_that_differs(world: World, compute: Compute, columns: int) -> None:
    where = "registry.example/a-team/with-a-long-name"
    deployed(compute, f"{where}/red-{'x' * 30}:1.0", f"{where}/blue-{'x' * 30}:1.0", f"{where}/blue-{'x' * 30}:2.0")
    result = compute("rollout", "history", "shop", tty=True, columns=columns, environ={"NO_COLOR": "1"})
    title, newest, middle, oldest = result.lines
    start, end = title.index("IMAGE"), title.index("CHANGES")
    images = [row[start:end].strip() for row in (newest, middle, oldest)]
    assert len(set(images)) == 3
    assert ["red" in image for image in images] == [False, False, True]
    assert [image.endswith("1.0") for image in images] == [False, True, True]


def test_a_history_shows_what_changed_of_an_image(world: World, compute: Compute) -> None:
    deployed(compute, LONG, LONG.replace("2026-11-02", "2026-11-09"))
    newest = compute("rollout", "history", "shop", tty=True, columns=160).lines[1]
    assert "2026-11-02 → " in newest
    assert newest.count("2026-11-09") == 2


def rolling_in_many_cities(world: World, done: int) -> None:
    world.workload(CITIES, 1)
    world.observe()
    for number, city in enumerate(CITIES):
        world.deployment(city, replicas=1)
        finished = int(number < done)
        world.report(city, finished, finished, desired=1)


def finish(world: World) -> None:
    for city in CITIES:
        world.report(city, 1, 1, desired=1)


def test_many_cities_on_a_small_screen_show_those_that_are_not_done(world: World, compute: Compute) -> None:
    rolling_in_many_cities(world, 12)
    steps: list[Callable[[], object]] = [nothing, lambda: finish(world)]
    result = compute("rollout", "shop", tty=True, columns=80, steps=steps, environ={"NO_COLOR": "1"})
    assert result.code == 0
    screen = next(drawn for drawn in screens(result.out) if "12 of 30 done, 2s" in "".join(drawn))
    assert len(screen) < 24
    cities = [line.split()[1] for line in screen if line.startswith("  default")]
    assert cities == [*CITIES[12:], *CITIES[:2]]
    assert screen[-1] == "  12 of 30 done, 2s (10 not shown)"


def test_a_shared_cause_is_shown_once_where_room_is_scarce(world: World, compute: Compute) -> None:
    rolling_in_many_cities(world, 12)
    for city in CITIES[12:]:
        denied = condition("Available", "False", "QuotaNotGranted", "none left")
        world.report(city, 0, 0, desired=1, available=denied)
    steps: list[Callable[[], object]] = [*[nothing] * 17, lambda: finish(world)]
    result = compute("rollout", "shop", tty=True, columns=80, steps=steps, environ={"NO_COLOR": "1"})
    screen = next(drawn for drawn in screens(result.out) if "Blocked" in "".join(drawn))
    cities = [line.split()[1] for line in screen if line.startswith("  default")]
    assert cities == CITIES[12 : 12 + len(cities)]
    assert len(cities) > 12
    assert "".join(screen).count("none left") == 1


def test_the_clock_runs_while_nothing_changes(world: World, compute: Compute) -> None:
    rolling_in_many_cities(world, 29)
    steps: list[Callable[[], object]] = [nothing, nothing, lambda: world.report("C29", 1, 1, desired=1)]
    result = compute("rollout", "shop", tty=True, columns=80, steps=steps, environ={"NO_COLOR": "1"})
    clocks = [drawn[-1].strip() for drawn in screens(result.out) if drawn and " of 30 done" in drawn[-1]]
    hidden = "(10 not shown)"
    counted = [("29", "0s"), ("29", "2s"), ("29", "4s"), ("30", "6s")]
    assert clocks == [f"{done} of 30 done, {time} {hidden}" for done, time in counted]


def rows_of(lines: list[str], columns: int) -> list[str]:
    """The lines of a table, none of which is wider than the terminal."""
    table = lines[: lines.index("")] if "" in lines else lines
    assert max(map(len, table)) <= columns, table
    return table


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "…"), ("ascii", "...")])
@pytest.mark.parametrize("columns", [60, 80])
def test_instances_on_a_narrow_terminal_leave_columns_out_and_mark_where(
    world: World, compute: Compute, columns: int, encoding: str, mark: str
) -> None:
    world.workload()
    running = world.instance("AMS", 0, address="198.51.100.7")
    broken = world.instance("DFW", 0, condition("Programmed", "False", "ImageUnavailable", "no such tag"))
    options = {"tty": True, "columns": columns, "encoding": encoding, "environ": {"NO_COLOR": "1"}}
    title, first, second = rows_of(compute("instances", **options).lines, columns)  # type: ignore[arg-type]
    assert (title.split()[0], title.split()[-1]) == ("NAME", "STATUS")
    assert mark in title.split()
    assert first.startswith(f"{running} ")
    assert second.startswith(f"{broken} ")
    assert second.endswith(" Failed (image unavailable)")
    assert title.index("STATUS") == first.index("Available") == second.index("Failed")
    wide = compute("instances", "-o", "wide", **options).lines[0]  # type: ignore[arg-type]
    assert mark not in wide
    assert "INTERNAL IP" in wide


@pytest.mark.parametrize("columns", NARROW)
def test_status_on_a_narrow_terminal_keeps_its_marks(world: World, compute: Compute, columns: int) -> None:
    world.settled(("DFW",))
    world.report("DFW", 1, 1, replicas=2)
    lines = compute("status", "shop", tty=True, columns=columns, environ={"NO_COLOR": "1"}).lines
    title, row = rows_of(lines[next(number for number, line in enumerate(lines) if "CITY" in line) :], columns)
    assert row.split()[1:4] == ["DFW", "1/2", "2"]
    assert "…" in row.split()[4]
    assert row.endswith(" [degraded]")
    assert title.index("TYPE") == row.index(row.split()[4])


@pytest.mark.parametrize("columns", [50, 80])
def test_what_blocks_a_place_and_what_to_do_are_not_truncated(world: World, compute: Compute, columns: int) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 0)
    sentence = f"the image {LONG} cannot be pulled"
    world.instance("DFW", 0, condition("Programmed", "False", "ImageUnavailable", sentence))
    words = ("rollout", "shop", "--timeout=2s")
    result = compute(*words, tty=True, columns=columns, steps=[nothing], environ={"NO_COLOR": "1"})
    screen = next(drawn for drawn in screens(result.out) if "Blocked" in "".join(drawn))
    assert max(map(len, screen)) <= columns
    text = "".join("".join(line.split()) for line in screen)
    assert "".join(sentence.split()) in text
    assert "thatitsregistryletsthesitepullit." in text
