"""Texts of engines, as Docker and Podman write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.providers.engine.words import (
    LONGEST_EXCERPT,
    PullProblem,
    Refusal,
    excerpt,
    program_in,
    pull_problem_in,
    refusal_in,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('exec: "serve": executable file not found in $PATH: unknown', Refusal.PROGRAM_MISSING),
        (
            "crun: executable file `serve` not found in $PATH: No such file or directory: "
            "OCI runtime attempted to invoke a command that was not found",
            Refusal.PROGRAM_MISSING,
        ),
        ('runc: exec: "/serve": stat /serve: no such file or directory: OCI runtime ...', Refusal.PROGRAM_MISSING),
        ("no command specified", Refusal.PROGRAM_MISSING),
        ('runc: exec: "/etc/passwd": permission denied: OCI permission denied', Refusal.PROGRAM_UNUSABLE),
        ("exec /bin/serve: exec format error", Refusal.OTHER_PROCESSOR),
        ("image with reference x was found but does not match the specified platform", Refusal.OTHER_PROCESSOR),
        ("driver failed programming: Bind for 127.0.0.1:4000 failed: port is already allocated", Refusal.PORT_TAKEN),
        ("rootlessport listen tcp 127.0.0.1:4000: bind: address already in use", Refusal.PORT_TAKEN),
        ('Conflict. The container name "/datum-1" is already in use by container "2f"', Refusal.NAME_TAKEN),
        ("write /var/lib/x: no space left on device", Refusal.DISK_FULL),
        ("NanoCPUs can not be set, as your kernel does not support CPU CFS scheduler", Refusal.OTHER),
        ("network datum-1-dfw not found", Refusal.OTHER),
        ("", Refusal.OTHER),
    ],
)
def test_refusals(text: str, expected: Refusal) -> None:
    assert refusal_in(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("manifest for registry.example/hello:9 not found: manifest unknown: manifest unknown", PullProblem.MISSING),
        ("initializing source docker://r.example/x:9: reading manifest 9: name unknown: no x", PullProblem.MISSING),
        (
            "pull access denied for hello, repository does not exist or may require 'docker login': denied",
            PullProblem.MISSING_OR_DENIED,
        ),
        ("Head https://r.example/v2/x: unauthorized: authentication required", PullProblem.DENIED),
        ("no basic auth credentials", PullProblem.DENIED),
        ("dial tcp: lookup r.example on 10.0.0.1:53: no such host", PullProblem.NO_ANSWER),
        ("Get https://r.example/v2/: net/http: request canceled (Client.Timeout exceeded)", PullProblem.NO_ANSWER),
        ("pinging container registry r.example: connect: connection refused", PullProblem.NO_ANSWER),
        ("invalid reference format: repository name must be lowercase", PullProblem.NAME_INVALID),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", PullProblem.OTHER_PROCESSOR),
        ("toomanyrequests: You have reached your pull rate limit", PullProblem.LIMITED),
        ("write /var/tmp/x: no space left on device", PullProblem.DISK_FULL),
        ("short-name resolution enforced but cannot prompt without a TTY", PullProblem.OTHER),
    ],
)
def test_pull_problems(text: str, expected: PullProblem) -> None:
    assert pull_problem_in(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('exec: "serve": executable file not found in $PATH', "serve"),
        (r"exec: \"/bin/x\": stat", "/bin/x"),
        ("crun: executable file `serve` not found in $PATH", "serve"),
        ("no command", ""),
    ],
)
def test_the_program_of_a_text(text: str, expected: str) -> None:
    assert program_in(text) == expected


@given(st.text(max_size=1000))
def test_an_excerpt_is_one_short_line(text: str) -> None:
    line = excerpt(text)
    assert len(line) <= LONGEST_EXCERPT
    assert line.isprintable()
    assert line == " ".join(line.split())
