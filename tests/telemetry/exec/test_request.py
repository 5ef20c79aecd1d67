"""Requests to run a command: what they ask for, what is refused, and what may be written about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.sessions import Command
from datum_compute.kube.errors import BadRequest, NotFound
from datum_compute.telemetry.exec.request import path_of, program, query_of, request_of

PATH = path_of("default", "web-default-dfw-0")

arguments = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=20)


@given(arguments, st.sampled_from(["", "app"]), st.booleans(), st.booleans())
def test_a_request_arrives_as_it_was_sent(rest: list[str], container: str, stdin: bool, tty: bool) -> None:
    command = Command(("sh", *rest), container, stdin, tty)
    request = request_of(PATH, query_of(command).encode())
    assert (request.namespace, request.instance, request.command) == ("default", "web-default-dfw-0", command)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (b"", "name the command"),
        (b"container=app", "name the command"),
        (b"command=", "name the command"),
        (b"&".join([b"command=a"] * 513), "513 arguments; 512 are the most"),
        (b"&".join([b"command=a"] * 5000), "more than 512 arguments"),
        (b"command=" + b"a" * 16_385, "16385 bytes; 16384 are the most"),
        (b"command=%E4" * 2, "not UTF-8"),
        (b"command=a%00b", "null character"),
        (b"command=\xff", "not UTF-8"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(query: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        request_of(PATH, query)


def test_the_largest_command_fits() -> None:
    request = request_of(PATH, b"&".join([b"command=" + b"%20" * 32] * 512))
    assert sum(map(len, request.command.arguments)) == 16_384


@pytest.mark.parametrize("path", ["/apis", PATH + "/", PATH.replace("exec", "log"), PATH.replace("/default/", "//")])
def test_other_paths_do_not_exist(path: str) -> None:
    with pytest.raises(NotFound):
        request_of(path, b"command=a")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("sh", "sh"),
        ("/usr/bin/env", "/usr/bin/env"),
        ("mysql --password=hunter2", "mysql"),
        ("a\x1b[31mb", "a?[31mb"),
        ("x" * 70, "x" * 64 + "…"),
        ("  ", "?"),
    ],
)
def test_only_the_program_is_ever_named(word: str, name: str) -> None:
    assert program(Command((word, "-c", "secret"))) == name
