"""Results of verbs, shown once or kept up to date, in the format that was asked for. Entry points: `View`, `Watch`,
`show`."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.documents import json_text
from datum_compute.cli.show.lines import Content
from datum_compute.cli.show.terminal import Terminal
from datum_compute.cli.talk.project import Read
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import decode
from datum_compute.kube.transport import Call

_TICK_SECONDS = 2.0
_READ_SECONDS = 10.0  # at the latest, even if no watch reports a change
_ERRORS_TO_REPORT = 5


class Page(Struct, frozen=True):
    """A result for people to read, and notes below it, which --quiet leaves out.

    The footer sums up a list; --no-headers leaves it out as well.
    """

    content: Content
    notes: Content = ()
    footer: Content = ()


class View(Struct, frozen=True):
    """A result for people and for programs.

    `page` depends on the time, because people see ages; it is called only for people, and may read what only they see.
    Without a page, people get the document as YAML. `records` are the objects of the document, by names such as
    `workload/shop`.
    """

    page: Callable[[datetime], Page] | None
    document: Any
    records: Mapping[str, Any] = {}


class Watch(Struct, frozen=True):
    """A view that is read again whenever one of these watch calls reports a change, until Ctrl-C."""

    calls: Sequence[Call]
    read: Callable[[], View]


def object_view(kind: Kind[Any], read: Read[Any], page: Callable[[datetime], Page]) -> View:
    """The view of a single object, whose document is the object as the server sent it."""
    return View(page, read.json, {f"{kind.name.lower()}/{read.object.name}": read.json})


def show(run: Run, result: View | Watch) -> None:
    """The one place that chooses by output format."""
    screen: _Screen
    match run.output:
        case "json" | "yaml":
            screen = _Documents(run.terminal, run.output)
        case "name":
            screen = _Names(run.terminal)
        case _ if isinstance(result, Watch) and run.terminal.redraws:
            screen = _Drawn(run)
        case _:
            screen = _Printed(run)
    if isinstance(result, View):
        screen.show(result)
    else:
        _keep_showing(run, result, screen)


def _keep_showing(run: Run, watch: Watch, screen: "_Screen") -> None:
    """Shows a view until Ctrl-C, or until its object is deleted."""
    try:
        with run.watching(watch.calls) as changes:
            view = watch.read()
            read_at: float | None = run.clock.monotonic()
            errors = 0
            while True:
                screen.update(view)
                if changes.wait(_TICK_SECONDS):
                    read_at = None
                now = run.clock.monotonic()
                if read_at is not None and changes.trusted and now - read_at < _READ_SECONDS:
                    continue
                try:
                    view, read_at, errors = watch.read(), now, 0
                except Failure as failure:
                    if failure.code is Exit.NOT_FOUND:
                        raise
                    read_at, errors = None, errors + 1
                    if errors == _ERRORS_TO_REPORT:
                        run.terminal.warn(f"{failure.message}; still trying")
    except KeyboardInterrupt:
        return
    finally:
        screen.end()


class _Screen(Protocol):
    def show(self, view: View) -> None:
        """Shows a view that does not change any more."""
        ...

    def update(self, view: View) -> None:
        """Shows what changed since the last update."""
        ...

    def end(self) -> None: ...


class _Printed:
    """For logs and pipes: the whole page again when anything but an age changed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._started = run.clock.now()
        self._last: Page | None = None

    def show(self, view: View) -> None:
        if view.page is None:
            self._run.terminal.data(view.document, "yaml")
            return
        page = view.page(self._run.clock.now())
        self._run.terminal.show(*page.content)
        self._run.terminal.note(*_below(self._run, page))

    def update(self, view: View) -> None:
        assert view.page is not None
        page = view.page(self._started)
        if page == self._last:
            return
        if self._last is not None:
            self._run.terminal.show("")
        self._last = page
        self.show(view)

    def end(self) -> None:
        pass


class _Drawn:
    """For a terminal: the page redrawn in place, with running ages."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._drawing = run.terminal.drawing()

    def show(self, view: View) -> None:
        self.update(view)

    def update(self, view: View) -> None:
        assert view.page is not None
        page = view.page(self._run.clock.now())
        self._drawing.draw(*page.content, *_below(self._run, page))

    def end(self) -> None:
        self._drawing.end()


class _Names:
    """For programs: names of objects, again when an object changed."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._last: dict[str, str] = {}

    def show(self, view: View) -> None:
        for name in view.records:
            self._terminal.name(name)

    def update(self, view: View) -> None:
        records = {name: json_text(value, indent=0) for name, value in view.records.items()}
        for name, text in records.items():
            if self._last.get(name) != text:
                self.changed(name, view.records[name])
        for name, text in self._last.items():
            if name not in records:
                self.deleted(text)
        self._last = records

    def changed(self, name: str, record: Any) -> None:
        self._terminal.name(name)

    def deleted(self, last: str) -> None:
        pass

    def end(self) -> None:
        pass


class _Documents(_Names):
    """For programs: the whole document, then each object that changed; deleted ones once more, marked `deleted`."""

    def __init__(self, terminal: Terminal, format_: str) -> None:
        super().__init__(terminal)
        self._format = format_

    def show(self, view: View) -> None:
        self._terminal.data(view.document, self._format)

    def changed(self, name: str, record: Any) -> None:
        if self._format == "yaml":
            self._terminal.name("---")
            self._terminal.data(record, "yaml")
        else:
            self._terminal.record(record)

    def deleted(self, last: str) -> None:
        self.changed("", decode(last.encode(), dict[str, Any]) | {"deleted": True})


def _below(run: Run, page: Page) -> Content:
    return page.notes if run.settings.no_headers else [*page.footer, *page.notes]
