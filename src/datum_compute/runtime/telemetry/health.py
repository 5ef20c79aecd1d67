"""Health, readiness and metrics of a process over HTTP. Entry points: `Probes`, `Heartbeat`.

`/healthz` fails only for what a restart would fix: an event loop that does not keep up, or a cache that no longer
follows a plane that answers. A plane that is away is no reason to restart.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from datum_compute.runtime.caches.informer import RELIST_SECONDS
from datum_compute.runtime.fleet import Fleet

CHECK_SECONDS = 2.0
BEAT_SECONDS = 1.0
LATE_SECONDS = 5.0
NAMED = 10
STALLED_SECONDS = 2 * RELIST_SECONDS  # every cache hears from its server at least once per relist

Check = Callable[[], bool | Awaitable[bool]]
"""Returns whether all is well, or raises `Unhealthy` to say what is not."""

Note = Callable[[], str]
"""Returns one sentence on a problem that does not make the process unready; empty when there is none."""

_TEXT = "text/plain; charset=utf-8"


class Unhealthy(Exception):
    """Why a check failed, in one sentence that anybody may read."""


class Heartbeat:
    """Measures how late the event loop is: work that blocks it delays everything else."""

    def __init__(self) -> None:
        self._lag = 0.0
        self._due: float | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._due = loop.time() + BEAT_SECONDS
                await asyncio.sleep(BEAT_SECONDS)
                self._lag = max(0.0, loop.time() - self._due)
        finally:
            self._due = None

    @property
    def lag(self) -> float:
        """The delay of the last beat, or of the one that is due now."""
        if self._due is None:
            return 0.0
        return max(self._lag, asyncio.get_running_loop().time() - self._due)

    def check(self) -> bool:
        if self.lag > LATE_SECONDS:
            raise Unhealthy(f"the event loop is {self.lag:.0f} s late")
        return True


def caches_follow(fleet: Fleet) -> Check:
    """Checks that all caches of planes that answer still hear from their server."""

    def check() -> bool:
        now = asyncio.get_running_loop().time()
        for plane in fleet.planes():
            for informer in plane.informers() if plane.answers else ():
                silence = now - informer.last_heard
                if informer.synced.is_set() and silence > STALLED_SECONDS:
                    raise Unhealthy(
                        f"the cache of {informer.kind.resource} on {plane.name} heard nothing for {silence:.0f} s"
                    )
        return True

    return check


def engaged(fleet: Fleet, *planes: str) -> Check:
    """Checks that these planes are engaged."""

    def check() -> bool:
        missing = [name for name in planes if not fleet.has(name)]
        if missing:
            raise Unhealthy(f"not engaged yet: {_some(missing)}")
        return True

    return check


def all_tried(fleet: Fleet) -> Check:
    """Checks that every known plane is engaged, or has failed once: waiting longer would not help."""

    def check() -> bool:
        untried = [plane.name for plane in fleet.known() if not fleet.tried(plane.name)]
        if untried:
            raise Unhealthy(f"not tried yet: {_some(untried)}")
        return True

    return check


def latched(check: Check) -> Check:
    """Passes for good once it has passed, for checks of a start."""
    passed = False

    async def latch() -> bool:
        nonlocal passed
        if not passed:
            answer = check()
            passed = await answer if inspect.isawaitable(answer) else answer
        return passed

    return latch


def away(fleet: Fleet) -> Note:
    """Names the planes that are away, and the phase in which following them fails."""

    def note() -> str:
        planes = fleet.known()
        gone = [
            f"{plane.name} ({phase.value})" if (phase := plane.failures.phase) is not None else plane.name
            for plane in planes
            if not fleet.up(plane.name)
        ]
        return f"{len(gone)} of {len(planes)} are away: {_some(gone)}" if gone else ""

    return note


def _some(names: list[str]) -> str:
    """As many names as fit into a readable line."""
    left_out = len(names) - NAMED
    return ", ".join(sorted(names)[:NAMED]) + (f" and {left_out} more" if left_out > 0 else "")


class Outcome(Struct, frozen=True):
    name: str
    problem: str = ""  # empty for a check that passed


async def examine(checks: Mapping[str, Check]) -> list[Outcome]:
    """Runs all checks concurrently, each for at most two seconds; one that crashes fails alone."""
    problems = await asyncio.gather(*(_problem(check) for check in checks.values()))
    return [Outcome(name, problem) for name, problem in zip(checks, problems, strict=True)]


async def _problem(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            answer = check()
            well = await answer if inspect.isawaitable(answer) else answer
    except Unhealthy as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS:g} s"
    except Exception as error:
        return f"the check failed ({type(error).__name__})"  # the text may not be for everybody
    return "" if well else "the check did not pass"


class Probes:
    """A raw ASGI application for `/healthz`, `/readyz` and, with a registry, `/metrics`.

    As on Kubernetes servers, `?verbose` lists the checks, `?exclude=<name>` skips one, `/readyz/<name>` runs one alone,
    and a failed check makes the answer 500 with its reason. `/readyz?verbose` also lists the notes.
    """

    def __init__(
        self,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
        registry: CollectorRegistry | None = None,
        *,
        notes: Mapping[str, Note] | None = None,
    ) -> None:
        self._notes = dict(notes or {})
        ping: dict[str, Check] = {"ping": lambda: True}
        self._checks = {"healthz": ping | dict(live), "livez": ping | dict(live), "readyz": ping | dict(ready)}
        self._registry = registry

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        code, text, kind = await self._answer(scope)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(text)).encode())]
        headers.append((b"cache-control", b"no-cache, no-store"))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": text if scope["method"] == "GET" else b""})

    async def _answer(self, scope: Mapping[str, Any]) -> tuple[int, bytes, str]:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, b"only GET and HEAD are allowed\n", _TEXT
        probe, _, name = scope["path"].strip("/").partition("/")
        if probe == "metrics" and not name and self._registry is not None:
            accepted = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            encode, kind = choose_encoder(accepted)
            return 200, encode(self._registry), kind
        checks = self._checks.get(probe)
        if checks is None or name not in ("", *checks):
            return 404, b"not found\n", _TEXT
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        excluded = query.get("exclude", [])
        chosen = {key: check for key, check in checks.items() if key not in excluded and name in ("", key)}
        outcomes, verbose = await examine(chosen), "verbose" in query
        notes = [f"[!]{key}: {text}" for key, note in self._notes.items() if (text := note())]
        return _report(probe, outcomes, notes if probe == "readyz" and not name else [], verbose=verbose)


def _report(probe: str, outcomes: list[Outcome], notes: list[str], *, verbose: bool) -> tuple[int, bytes, str]:
    failed = any(outcome.problem for outcome in outcomes)
    if not failed and not verbose:
        return 200, b"ok", _TEXT
    lines = [f"[-]{each.name} failed: {each.problem}" if each.problem else f"[+]{each.name} ok" for each in outcomes]
    lines += notes
    lines.append(f"{probe} check {'failed' if failed else 'passed'}\n")
    return 500 if failed else 200, "\n".join(lines).encode(), _TEXT
