"""Why a workload is held up, as a user of the project sees it."""

import json
import shlex

import click
import pytest

from datum_compute.answers.advice import advice
from datum_compute.answers.why import why
from datum_compute.api.instance import INSTANCE
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.failures import Exit
from datum_compute.cli.shell.tree import Leaf, Root, Verbs
from tests.answers.test_why import CASES, seen
from tests.cli.conftest import NOW, Compute, Stream, World, condition
from tests.cli.server import ApiServer

NO_QUOTA = condition("QuotaGranted", "False", "QuotaExceeded", "Requested 1 instance, 0 available.")


def short_of_quota(world: World) -> None:
    world.settled()
    starve(world)


def starve(world: World) -> None:
    world.report("DFW", 1, 1, replicas=2)
    waiting = {"conditions": [NO_QUOTA, condition("Ready", "False", "PendingQuota")]}
    world.api.set_status(INSTANCE, f"{world.name}-default-dfw-1", waiting)


def test_a_workload_that_is_fine_costs_three_calls(compute: Compute, api: ApiServer, world: World) -> None:
    world.settled()
    api.requests.clear()
    result = compute("why", "shop")
    assert (result.code, result.out) == (
        0,
        "Nothing blocks shop: 4 of 4 instances in 2 cities run the newest version.\n",
    )
    assert len(api.requests) == 3


def test_a_workload_that_is_held_up_costs_at_most_nine(compute: Compute, api: ApiServer, world: World) -> None:
    short_of_quota(world)
    api.requests.clear()
    assert compute("why", "shop").lines[0].startswith("shop is held up in DFW by quota (1 of 2 instances)")
    assert 3 < len(api.requests) <= 9
    assert {request.method for request in api.requests} == {"GET"}


def test_without_a_name_all_workloads_are_meant(compute: Compute, world: World) -> None:
    world.settled()
    assert compute("why").out == "Nothing blocks any workload in project demo.\n"


def test_all_workloads_together_cost_three_calls(compute: Compute, api: ApiServer, world: World) -> None:
    short_of_quota(world)
    World(api, "blog").settled()
    api.requests.clear()
    result = compute("why")
    assert [line.split()[0] for line in result.lines if line] == ["WORKLOAD", "shop", "Look"]
    assert len(api.requests) == 3


@pytest.mark.parametrize(("words", "code"), [(["blog"], Exit.OK), (["shop"], Exit.NOT_FINE), ([], Exit.NOT_FINE)])
def test_a_script_learns_whether_anything_is_held_up(
    compute: Compute, api: ApiServer, world: World, words: list[str], code: Exit
) -> None:
    short_of_quota(world)
    World(api, "blog").settled()
    assert compute("why", *words).code == Exit.OK
    assert compute("why", *words, "--exit-code").code == code


def test_a_name_that_nothing_has_is_not_found(compute: Compute, world: World) -> None:
    world.settled()
    result = compute("why", "nope")
    assert (result.code, result.err.splitlines()[0]) == (
        Exit.NOT_FOUND,
        'Error: workload "nope" not found in project demo',
    )


def test_an_instance_is_found_by_its_name(compute: Compute, world: World) -> None:
    short_of_quota(world)
    result = compute("why", "shop-default-dfw-1")
    assert result.lines[0].startswith("shop-default-dfw-1 is held up in DFW by quota")
    assert "AMS" not in result.out
    assert compute("why", "instance/shop-default-dfw-0").lines[0].startswith("Nothing blocks shop-default-dfw-0")


def test_without_rights_nothing_can_be_said(compute: Compute, api: ApiServer, world: World) -> None:
    world.settled()
    for part in ("workloaddeployments", "instances"):
        api.answer("GET", part, 403, times=9)
    result = compute("why", "shop")
    assert (result.code, "you may not read deployments and instances" in result.err) == (Exit.NOT_ALLOWED, True)


def test_a_right_that_is_missing_is_named(compute: Compute, api: ApiServer, world: World) -> None:
    short_of_quota(world)
    api.answer("GET", "/instances", 403, times=9)
    result = compute("why", "shop", "-o", "json")
    answer = json.loads(result.out)
    assert (answer["reason"], answer["who"]) == ("NotReadable", "admin")


def test_marks_are_words_where_there_is_no_unicode(compute: Compute, world: World) -> None:
    short_of_quota(world)
    result = compute("why", "shop", encoding="ascii")
    assert "created ok  quota NO  running ." in result.out


def test_a_narrow_terminal_shows_a_word_a_line(compute: Compute, world: World) -> None:
    short_of_quota(world)
    result = compute("why", "shop", tty=True, columns=50, environ={"TERM": "dumb"})
    assert [line.strip() for line in result.lines if line.strip().startswith(("created", "quota ✗"))] == [
        "created ✓",
        "quota ✗",
    ]


def test_json_has_every_field_whatever_is_known(compute: Compute, world: World) -> None:
    world.settled()
    fine = json.loads(compute("why", "shop", "-o", "json").out)
    starve(world)
    held = json.loads(compute("why", "shop", "-o", "json").out)
    assert fine.keys() == held.keys()
    assert [city.keys() for city in fine["cities"]] == [city.keys() for city in held["cities"]]
    assert (fine["hop"], fine["reason"], fine["who"], fine["since"]) == (None,) * 4
    assert held["next"]["do"] == ["compute", "scale", "shop", "--min=1"]


def test_flags_of_operators_need_their_kubeconfig(compute: Compute, world: World) -> None:
    world.settled()
    assert compute("why", "shop", "--host-context=x").code == Exit.USAGE
    assert compute("why", "shop", "--federation-kubeconfig=/no/such").code == Exit.USAGE
    assert compute("why", "shop", "--cell-context=x").code == Exit.USAGE


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_command_that_is_suggested_can_be_typed(case: tuple[dict[str, object], object]) -> None:
    answer = why(seen(user=True, **case[0]), NOW)
    found = advice(answer, "shop")
    for words in filter(None, (found.do, *found.alternatives)):
        assert isinstance(command_of(shlex.join(words)), Leaf | Verbs)


def command_of(line: str) -> click.Command:
    """The command that a line leads to, all its flags and arguments parsed; a group that lists something by itself."""
    command: click.Command = Root()
    words = shlex.split(line)
    environment = Environment(program="compute", environ={}, stdout=Stream(), stderr=Stream())
    context = click.Context(command, obj=environment)
    while isinstance(command, Verbs) and words:
        word = words.pop(0)
        found = command.get_command(context, word)
        assert found is not None, line
        command = found
        context = click.Context(command, parent=context, info_name=word)
    if not isinstance(command, Verbs):
        command.parse_args(context, words)
    return command
