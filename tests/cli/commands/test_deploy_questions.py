"""`deploy` without a word, in a terminal: questions instead of flags."""

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import as_dict
from tests.cli.conftest import IMAGE, Compute, World, placement, template
from tests.cli.server import ApiServer

NAME = "Workload name: "
IMAGE_ = "Container image: "
TYPE = "Instance type [datumcloud/d1-standard-2]: "
CITIES = "Cities, separated by commas (AMS, DFW, SIN): "
MIN = "Minimum replicas per city [1]: "
PORT = "Port (optional) [none]: "
APPLY = "Apply? (Y/n): "


def ask(compute: Compute, *answers: str, words: tuple[str, ...] = ("--no-wait", "--no-save")) -> tuple[int, str, str]:
    text = "".join(f"{answer}\n" for answer in answers)
    result = compute("deploy", *words, tty=True, stdin=text, environ={"NO_COLOR": "1"})
    return result.code, result.out, result.err


def test_from_the_first_question_to_the_workload(api: ApiServer, compute: Compute) -> None:
    code, out, err = ask(compute, "shop", IMAGE, "", "dfw, ams", "2", "8080", "y")
    assert (code, err) == (0, NAME + IMAGE_ + TYPE + CITIES + MIN + PORT + APPLY)
    assert out == (
        "\n"
        "  Workload              shop\n"
        f"  Image                 {IMAGE}\n"
        "  Instance type         datumcloud/d1-standard-2\n"
        "  Port                  8080\n"
        '  Placement "default"   cities=[DFW, AMS], min=2\n'
        "  workload/shop created\n"
        "Run 'compute rollout status shop' to watch progress.\n"
    )
    assert as_dict(api.get(WORKLOAD, "shop").spec_json) == {
        "template": template(ports=[{"name": "http", "port": 8080, "protocol": "TCP"}]),
        "placements": [
            {
                "name": "default",
                "cityCodes": ["DFW", "AMS"],
                "scaleSettings": {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"},
            }
        ],
    }


def test_enter_takes_the_defaults(api: ApiServer, compute: Compute) -> None:
    assert ask(compute, "shop", IMAGE, "", "SIN", "", "", "")[0] == 0
    spec = api.get(WORKLOAD, "shop").spec
    assert spec.placements[0].scale_settings.min_replicas == 1
    assert (
        "ports"
        not in as_dict(api.get(WORKLOAD, "shop").spec_json)["template"]["spec"]["runtime"]["sandbox"]["containers"][0]
    )


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        (("My Shop", "shop", IMAGE), 1, '"My Shop" is not a valid workload name'),
        (("shop", "", IMAGE), 2, "name the image to run"),
        (("shop", IMAGE, "", "XYZ", "DFW"), 4, 'city "XYZ" is not offered to project demo'),
        (("shop", IMAGE, "", "", "DFW"), 4, "name at least one city"),
        (("shop", IMAGE, "", "DFW", "0", "1"), 5, "min replicas must be at least 1"),
        (("shop", IMAGE, "", "DFW", "1", "99999", "80"), 6, '"99999" is not a port'),
    ],
)
def test_after_an_invalid_answer_the_question_is_asked_again(
    api: ApiServer, compute: Compute, wrong: tuple[str, ...], right: int, problem: str
) -> None:
    rest = {1: ("", "DFW", "1", ""), 2: ("", "DFW", "1", ""), 4: ("1", ""), 5: ("",), 6: ()}[right]
    code, _, err = ask(compute, *wrong, *rest, "y")
    assert code == 0
    assert problem in err
    assert api.all(WORKLOAD) != []


def test_three_invalid_answers_are_an_error(api: ApiServer, compute: Compute) -> None:
    code, out, err = ask(compute, "A", "B", "C", "shop")
    assert (code, out) == (2, "")
    assert err.count(NAME) == 3
    assert err.splitlines()[-1].startswith('Error: no usable answer in three tries: "C" is not a valid workload name')
    assert api.writes() == []


@pytest.mark.parametrize("answers", [(), ("shop",), ("shop", IMAGE, "", "DFW", "1", "")])
def test_the_end_of_the_input_is_a_no(api: ApiServer, compute: Compute, answers: tuple[str, ...]) -> None:
    code, out, _ = ask(compute, *answers)
    assert (code, out.splitlines()[-1]) == (0, "Aborted.")
    assert api.writes() == []


def test_a_no_to_the_last_question_aborts(api: ApiServer, compute: Compute) -> None:
    code, out, _ = ask(compute, "shop", IMAGE, "", "DFW", "1", "", "n")
    assert (code, out.splitlines()[-1]) == (0, "Aborted.")
    assert api.writes() == []


def test_current_values_of_an_existing_workload_are_the_defaults(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.workload(("DFW",), 3, spec={"template": template(env=[{"name": "A", "value": "b"}])})
    before = as_dict(api.get(WORKLOAD, "shop").spec_json)
    code, out, err = ask(compute, "shop", "shop:9", "", "", "", "", "y")
    assert code == 0
    assert f"Container image [{IMAGE}]: " in err
    assert "Cities, separated by commas (AMS, DFW, SIN) [DFW]: Minimum replicas per city [3]: " in err
    assert f"  image: {IMAGE} → shop:9" in out.splitlines()
    before["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["image"] = "shop:9"
    assert as_dict(api.get(WORKLOAD, "shop").spec_json) == before


def test_questions_that_do_not_apply_are_not_asked(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(spec={"placements": [placement("us", ["DFW"], 1), placement("eu", ["AMS"], 1)]})
    code, out, err = ask(compute, "shop", "shop:9", "", "", "y")
    assert code == 0
    assert "Cities" not in err
    assert "Minimum" not in err
    assert '  Placement "eu"   cities=[AMS], min=1' in out.replace("     ", "   ")


def test_without_a_terminal_nothing_is_asked(api: ApiServer, compute: Compute) -> None:
    result = compute("deploy", stdin="shop\n")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "Error: workload name and --image are required, or use -f to specify a manifest file\n\n"
        "compute deploy hello --image=IMAGE --city=CITY\n"
    )
    assert api.requests == []


def test_a_change_flag_without_a_name_does_not_start_questions(api: ApiServer, compute: Compute) -> None:
    result = compute("deploy", "--image=x", tty=True)
    assert (result.code, result.err.splitlines()[0]) == (2, "Error: workload name is required")
