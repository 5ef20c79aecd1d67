"""The command line and the environment, by table."""

import pytest

from datum_compute.operator.flags import FLAGS, Flags, UsageError, parse


def _parse(*arguments: str, **environment: str) -> Flags:
    return parse(arguments, environment, "1.2.3")


def test_every_field_has_one_flag_and_its_variable() -> None:
    assert [flag.field for flag in FLAGS] == list(Flags.__struct_fields__)
    assert len({flag.variable for flag in FLAGS}) == len(FLAGS)


def test_both_groups_of_controllers_are_off_by_default() -> None:
    flags = _parse()
    assert flags == Flags()
    assert (flags.enable_management_controllers, flags.enable_cell_controllers) == (False, False)
    assert (flags.provider, flags.builtins, flags.leader_elect) == ("none", "", False)


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["--leader-elect"], {}, True),
        (["--leader-elect=true"], {}, True),
        (["--leader-elect", "false"], {}, False),
        ([], {"LEADER_ELECT": "true"}, True),
        ([], {"LEADER_ELECT": ""}, False),
        (["--leader-elect=false"], {"LEADER_ELECT": "true"}, False),
    ],
)
def test_a_switch_comes_from_the_flag_then_the_environment_then_the_default(
    arguments: list[str], environment: dict[str, str], expected: bool
) -> None:
    assert _parse(*arguments, **environment).leader_elect is expected


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, ":8081"),
        ([], {"HEALTH_PROBE_BIND_ADDRESS": ":9000"}, ":9000"),
        (["--health-probe-bind-address", ":9001"], {"HEALTH_PROBE_BIND_ADDRESS": ":9000"}, ":9001"),
        (["--health-probe-bind-address="], {"HEALTH_PROBE_BIND_ADDRESS": ":9000"}, ""),
    ],
)
def test_a_value_comes_from_the_flag_then_the_environment_then_the_default(
    arguments: list[str], environment: dict[str, str], expected: str
) -> None:
    assert _parse(*arguments, **environment).health_probe_bind_address == expected


def test_the_environment_of_the_shipped_deployment_is_understood() -> None:
    flags = _parse(
        LEADER_ELECT="true",
        HEALTH_PROBE_BIND_ADDRESS=":8081",
        SERVER_CONFIG="/config/config.yaml",
        FEDERATION_KUBECONFIG="",
        ENABLE_MANAGEMENT_CONTROLLERS="false",
        ENABLE_CELL_CONTROLLERS="false",
        FEATURE_GATES="",
    )
    assert flags == Flags(leader_elect=True, server_config="/config/config.yaml")


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--leader-elect=perhaps"], {}, '--leader-elect: "perhaps" is neither true nor false'),
        ([], {"LEADER_ELECT": "perhaps"}, 'environment variable LEADER_ELECT: "perhaps" is neither true nor false'),
        (["--log-level=loud"], {}, '--log-level: "loud" is not one of debug, info, warning, error'),
        ([], {"LOG_FORMAT": "xml"}, 'environment variable LOG_FORMAT: "xml" is not one of json, console'),
        (["--nonsense"], {}, "unrecognized arguments: --nonsense"),
        (["--leader-el"], {}, "unrecognized arguments: --leader-el"),
        (["extra"], {}, "unrecognized arguments: extra"),
        (["--provider"], {}, "--provider: expected one argument"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        _parse(*arguments, **environment)
    assert str(refused.value) == sentence


def test_version_and_help_exit_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == "compute-manager 1.2.3\n"
    with pytest.raises(SystemExit) as ended:
        _parse("--help")
    assert ended.value.code == 0
    usage = capsys.readouterr().out
    assert all(f"--{flag.name}" in usage for flag in FLAGS)
