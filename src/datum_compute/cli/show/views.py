"""What a command found, shown once or again whenever it changes. Entry points: `Look`, `show`, `keep_showing`."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.documents import json_text
from datum_compute.cli.show.lines import View
from datum_compute.kube.meta import decode
from datum_compute.kube.transport import Call

_TICK_SECONDS = 2.0
_READ_SECONDS = 10.0  # at the latest, whatever the watches say
_ERRORS_TO_TELL = 5


class Page(Struct, frozen=True):
    """For people: what was asked for, and notes below it, which --quiet leaves out.

    The footer sums a list up; it goes with the titles when those are not wanted, as both are for people.
    """

    shown: View
    noted: View = ()
    footer: View = ()


class Look(Struct, frozen=True):
    """What was found: for people, who see ages and so depend on the time, and for programs.

    `document` is the whole of it, `records` are its objects by their names, as `workload/shop`.
    """

    page: Callable[[datetime], Page]
    document: Any
    records: Mapping[str, Any]


def show(run: Run, look: Look) -> None:
    match run.output:
        case "json" | "yaml":
            run.terminal.data(look.document, run.output)
        case "name":
            for name in look.records:
                run.terminal.name(name)
        case _:
            _print(run, look.page(run.clock.now()))


def keep_showing(run: Run, calls: Sequence[Call], look: Callable[[], Look]) -> None:
    """Until Ctrl-C, or until it cannot be found any more. `calls` are watches that tell when it may have changed."""
    screen = _screen(run)
    try:
        with run.watching(calls) as changes:
            last = look()
            read_at: float | None = run.clock.monotonic()
            errors = 0
            while True:
                screen.show(last)
                if changes.wait(_TICK_SECONDS):
                    read_at = None
                now = run.clock.monotonic()
                if read_at is not None and changes.trusted and now - read_at < _READ_SECONDS:
                    continue
                try:
                    last, read_at, errors = look(), now, 0
                except Failure as failure:
                    if failure.code is Exit.NOT_FOUND:
                        raise
                    read_at, errors = None, errors + 1
                    if errors == _ERRORS_TO_TELL:
                        run.terminal.warn(f"{failure.message}; still trying")
    except KeyboardInterrupt:
        return
    finally:
        screen.end()


class _Printed:
    """For logs and pipes: the whole page again when anything on it but an age is different."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since = run.clock.now()
        self._last: Page | None = None

    def show(self, look: Look) -> None:
        page = look.page(self._since)
        if page == self._last:
            return
        if self._last is not None:
            self._run.terminal.show("")
        self._last = page
        _print(self._run, look.page(self._run.clock.now()))

    def end(self) -> None:
        """Nothing was begun."""


class _Drawn:
    """For a terminal: the page in its place, with ages that go on."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._drawing = run.terminal.drawing()

    def show(self, look: Look) -> None:
        page = look.page(self._run.clock.now())
        self._drawing.draw(*page.shown, *_below(self._run, page))

    def end(self) -> None:
        self._drawing.end()


class _Recorded:
    """For programs: each object when it is new or different, and as it was last, marked `deleted`, when it is gone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last: dict[str, str] = {}

    def show(self, look: Look) -> None:
        now = {name: json_text(value, indent=0) for name, value in look.records.items()}
        for name, text in now.items():
            if self._last.get(name) != text:
                self._tell(name, look.records[name])
        for name, text in self._last.items():
            if name not in now and self._run.output != "name":
                self._tell(name, decode(text.encode(), dict[str, Any]) | {"deleted": True})
        self._last = now

    def _tell(self, name: str, value: Any) -> None:
        match self._run.output:
            case "name":
                self._run.terminal.name(name)
            case "yaml":
                self._run.terminal.name("---")
                self._run.terminal.data(value, "yaml")
            case _:
                self._run.terminal.record(value)

    def end(self) -> None:
        """Nothing was begun."""


def _screen(run: Run) -> _Printed | _Drawn | _Recorded:
    if run.output in ("json", "yaml", "name"):
        return _Recorded(run)
    return _Drawn(run) if run.terminal.redraws else _Printed(run)


def _print(run: Run, page: Page) -> None:
    run.terminal.show(*page.shown)
    run.terminal.note(*_below(run, page))


def _below(run: Run, page: Page) -> View:
    return page.noted if run.settings.no_headers else [*page.footer, *page.noted]
