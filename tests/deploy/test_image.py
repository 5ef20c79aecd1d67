"""The Dockerfile fits the package, its locks, and the Deployment that runs the image."""

import re
import tomllib

from tests.deploy.rendered import DEPLOY, rendered

REPOSITORY = DEPLOY.parent
TEXT = (REPOSITORY / "Dockerfile").read_text("utf-8")
STAGES = re.split(r"^FROM .*$", TEXT, flags=re.M)[1:]


def test_nothing_is_installed_without_a_hash() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?install (.*?)(?: \\)?$", STAGES[0], re.M)
    assert [("--require-hashes" in line, "--no-index" in line) for line in installs] == [
        (True, False),  # what runs
        (True, False),  # what builds, in an environment that stays behind
        (False, True),  # this package
    ]
    assert "requirements-dev.lock" not in installs[0]


def test_the_last_stage_only_copies_the_environment() -> None:
    last = [line.split()[0] for line in STAGES[-1].splitlines() if line and not line.startswith("#")]
    assert sorted(last) == ["COPY", "ENTRYPOINT", "ENV", "USER"]


def test_the_user_is_that_of_the_deployment() -> None:
    security = rendered("overlays/management").pod["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in STAGES[-1].splitlines()


def test_the_entrypoint_is_a_program_of_the_package() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    [program] = re.findall(r'^ENTRYPOINT \["/opt/compute/bin/(.*)"\]$', STAGES[-1], re.M)
    assert program in scripts


def test_what_is_copied_is_there_and_nothing_else_is_sent_to_the_build() -> None:
    copied = {name for names in re.findall(r"^COPY (?!--from)(.*) \S+$", STAGES[0], re.M) for name in names.split()}
    ignored = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    assert ignored[0] == "*"
    assert all((REPOSITORY / name).exists() for name in copied)
