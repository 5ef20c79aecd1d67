"""Every prompt, in a real terminal and without one."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from datum_compute.api.networking import NETWORK
from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, World
from tests.cli.server import ApiServer

# The terminal has to be the controlling one, else a Ctrl-C typed there interrupts nobody.
_PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from datum_compute.cli.main import main
sys.exit(main())
"""
_GUARD_SECONDS = 60.0  # a program that never answers fails the test instead of holding it

END = "\x04"
CTRL_C = "\x03"
NEW = ("deploy", "shop", "--image=registry.example/shop:1", "--city=DFW", "--no-wait", "--no-save")


class Session:
    """A context manager that runs the program in its own terminal."""

    def __init__(self, words: tuple[str, ...], environ: dict[str, str], directory: Path) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            cwd=directory,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def answer(self, question: str, answer: str) -> None:
        """Types the answer once the question is on the screen."""
        self._read(lambda: question in self.text)
        os.write(self._master, answer.encode())

    def ended(self) -> int:
        self._read(lambda: False)
        return self._process.wait()

    def _read(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _GUARD_SECONDS
        while not enough():
            ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise AssertionError(f"still waiting after: {self.text!r}")
            try:
                found = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                found = b""
            if not found:
                assert self._process.wait() is not None
                return
            self.text += found.decode()


Open = Callable[..., Session]


@pytest.fixture
def terminal(compute: Compute, tmp_path: Path) -> Iterator[Open]:
    """Opens terminals; `compute` beside it runs the same program without one."""
    sessions: list[Session] = []
    environ = {
        **compute.environ,
        "HOME": str(tmp_path),
        "DATUM_COMPUTE_LOCAL_DIR": str(tmp_path / "local"),
        "TERM": "xterm",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
    }

    def start(*words: str) -> Session:
        sessions.append(Session(words, environ, tmp_path))
        return sessions[-1]

    yield start
    for session in sessions:
        session.__exit__()


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["as usual", "ignored by who started it"])
def interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the program inherits for Ctrl-C: jobs in the background of a script have it ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


APPLY = "Apply? (Y/n): "


class TestApply:
    @pytest.mark.parametrize(
        ("answer", "written"),
        [("\n", True), ("y\n", True), ("n\n", False), ("no\n", False), (END, False)],
        ids=["enter", "yes", "n", "no", "end of input"],
    )
    def test_deploy(self, api: ApiServer, terminal: Open, answer: str, written: bool) -> None:
        session = terminal(*NEW)
        session.answer(APPLY, answer)
        assert session.ended() == 0
        assert bool(api.all(WORKLOAD)) is written
        assert ("Aborted." in session.text) is not written

    def test_a_command_typed_ahead_is_not_a_yes(self, api: ApiServer, terminal: Open) -> None:
        session = terminal(*NEW)
        for _ in range(3):
            session.answer(APPLY, "clear; compute status shop\n")
        assert session.ended() == 0
        assert "Answer y or n." in session.text
        assert "Aborted." in session.text
        assert api.all(WORKLOAD) == []

    def test_a_typo_can_be_corrected(self, api: ApiServer, terminal: Open) -> None:
        session = terminal(*NEW)
        session.answer(APPLY, "yy\n")
        session.answer(APPLY, "yes\n")
        assert session.ended() == 0
        assert api.all(WORKLOAD) != []

    @pytest.mark.usefixtures("interrupts")
    def test_ctrl_c_is_an_interruption(self, api: ApiServer, terminal: Open) -> None:
        session = terminal(*NEW)
        session.answer(APPLY, CTRL_C)
        assert session.ended() == 130
        assert "Traceback" not in session.text
        assert api.all(WORKLOAD) == []

    def test_yes_is_not_asked(self, api: ApiServer, terminal: Open) -> None:
        session = terminal(*NEW, "-y")
        assert session.ended() == 0
        assert APPLY not in session.text

    def test_without_a_terminal_it_proceeds(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW)
        assert (result.code, result.err) == (0, "")
        assert api.all(WORKLOAD) != []

    @pytest.mark.parametrize(("answer", "image"), [("\n", ":1"), ("n\n", ":2")])
    def test_undo(self, api: ApiServer, compute: Compute, terminal: Open, answer: str, image: str) -> None:
        compute(*NEW)
        compute("deploy", "shop", "--image=registry.example/shop:2", "--no-wait")
        session = terminal("rollout", "undo", "shop")
        session.answer(APPLY, answer)
        assert session.ended() == 0
        assert f'registry.example/shop{image}"'.encode() in bytes(api.get(WORKLOAD, "shop").spec_json)

    def test_undo_without_a_terminal_proceeds(self, api: ApiServer, compute: Compute) -> None:
        compute(*NEW)
        compute("deploy", "shop", "--image=registry.example/shop:2", "--no-wait")
        assert compute("rollout", "undo", "shop").code == 0


class TestNetwork:
    QUESTION = "  Create it now? (Y/n): "

    @pytest.fixture(autouse=True)
    def _no_network(self, api: ApiServer) -> None:
        api.delete(NETWORK, "default")

    @pytest.mark.parametrize(("answer", "made"), [("\n", True), ("n\n", False), (END, False)])
    def test_in_a_terminal(self, api: ApiServer, terminal: Open, answer: str, made: bool) -> None:
        session = terminal(*NEW)
        session.answer(self.QUESTION, answer)
        if made:
            session.answer(APPLY, "\n")
        assert session.ended() == (0 if made else 1)
        assert bool(api.all(NETWORK)) is made

    def test_without_a_terminal_it_is_an_error_that_names_yes(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW)
        assert (result.code, "use --yes" in result.err) == (1, True)
        assert api.writes() == []

    def test_yes_creates(self, api: ApiServer, compute: Compute) -> None:
        assert compute(*NEW, "-y").code == 0
        assert api.all(NETWORK) != []


class TestDestroy:
    QUESTION = "This will delete workload and all its instances. Continue? (y/N): "

    @pytest.fixture(autouse=True)
    def _deployed(self, world: World) -> None:
        world.workload()

    @pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("\n", False), ("n\n", False), (END, False)])
    def test_in_a_terminal(self, api: ApiServer, terminal: Open, answer: str, gone: bool) -> None:
        session = terminal("destroy", "shop")
        session.answer(self.QUESTION, answer)
        assert session.ended() == 0
        assert (api.all(WORKLOAD) == []) is gone
        assert ("Aborted." in session.text) is not gone

    def test_without_a_terminal_it_refuses(self, api: ApiServer, compute: Compute) -> None:
        result = compute("destroy", "shop")
        assert (result.code, "pass -y to confirm" in result.err) == (2, True)
        assert api.writes() == []

    def test_yes_proceeds(self, api: ApiServer, compute: Compute) -> None:
        assert compute("destroy", "shop", "-y").code == 0
        assert api.all(WORKLOAD) == []


class TestAccess:
    QUESTION = "Would you like to request access? [y/N]: "

    @pytest.mark.parametrize("answer", ["\n", "n\n", END])
    def test_anything_but_a_yes_requests_nothing(self, bare_api: ApiServer, terminal: Open, answer: str) -> None:
        session = terminal("workloads")
        session.answer(self.QUESTION, answer)
        assert session.ended() == 9
        assert "No request was made." in session.text
        assert bare_api.all(SERVICE_ENTITLEMENT) == []

    @pytest.mark.parametrize("words", [("workloads",), ("destroy", "shop", "-y")])
    def test_without_a_terminal_it_never_asks(
        self, bare_api: ApiServer, compute: Compute, words: tuple[str, ...]
    ) -> None:
        result = compute(*words)
        assert (result.code, self.QUESTION in result.err) == (10, False)
        assert bare_api.writes() == []

    def test_the_yes_flag_is_not_consent_to_request_access(self, bare_api: ApiServer, terminal: Open) -> None:
        session = terminal(*NEW, "-y")
        session.answer(self.QUESTION, "n\n")
        assert session.ended() == 9


def test_questions_in_a_terminal(api: ApiServer, terminal: Open, tmp_path: Path) -> None:
    session = terminal("deploy", "--no-wait")
    for question, answer in [
        ("Workload name: ", "Shop"),
        ("Workload name: ", "shop"),
        ("Container image: ", "registry.example/shop:1"),
        ("Instance type [datumcloud/d1-standard-2]: ", ""),
        ("Cities, separated by commas (AMS, DFW, SIN): ", "dfw"),
        ("Minimum replicas per city [1]: ", ""),
        ("Port (optional) [none]: ", ""),
        (APPLY, ""),
    ]:
        session.answer(question, f"{answer}\n")
        session.text = session.text.replace(question, "", 1)  # the same question may come again
    assert session.ended() == 0
    assert api.get(WORKLOAD, "shop").spec.placements[0].city_codes == ("DFW",)
    assert "Saved workload.yaml" in session.text
    assert (tmp_path / "workload.yaml").exists()


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_detaches_from_a_rollout(api: ApiServer, terminal: Open) -> None:
    session = terminal("deploy", "shop", "--image=x", "--city=DFW", "-y", "--no-save")
    session.answer("Pending", CTRL_C)
    assert session.ended() == 0
    detached = "\x1b[JDetached. Rollout continues in background.\r\n"
    assert session.text.endswith(detached + "Run 'compute rollout status shop' to watch progress.\r\n")
    assert api.all(WORKLOAD) != []


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_ends_a_watch(api: ApiServer, terminal: Open, world: World) -> None:
    world.workload()
    session = terminal("workloads", "-w")
    session.answer("1 workload", CTRL_C)
    assert session.ended() == 0
