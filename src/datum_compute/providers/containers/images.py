"""Pulls images, each once however many Instances wait for it. Entry point: `Images`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import structlog
from msgspec.structs import replace

from datum_compute.providers.containers.image_rules import (
    ImageState,
    Present,
    Progress,
    Pulling,
    Unavailable,
    is_pulled_anew,
    wait_after,
)
from datum_compute.providers.engine.interface import ContainerEngine, EngineAway, Refused
from datum_compute.providers.engine.words import PullProblem, excerpt, pull_problem_in
from datum_compute.runtime import Request

AT_ONCE = 2

Credentials = Callable[[str], Awaitable[str]]
"""From the reference of an image to the value of `X-Registry-Auth`; empty if there is none."""

_log = structlog.get_logger(__name__)


class _Pull:
    """A pull under way, and who waits for it, by uid."""

    def __init__(self) -> None:
        self.waiting: dict[str, Request] = {}
        self.progress = Progress()
        self.task: asyncio.Task[None] | None = None


class Images:
    """`wake` is called for every request that may find another state than before.

    Credentials are read when they are needed, and not kept.
    """

    def __init__(self, credentials: Credentials, wake: Callable[[Request], None]) -> None:
        self._credentials = credentials
        self._wake = wake
        self._pulls: dict[str, _Pull] = {}  # by reference
        self._failures: dict[str, int] = {}  # in a row
        self._failed: dict[str, Unavailable] = {}
        self._fresh: dict[tuple[str, str], str] = {}  # references and uids that need no newer image, and why it is old
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def state(self, engine: ContainerEngine, reference: str, uid: str, waiter: Request) -> ImageState:
        """What is known about the image of a container that is about to be created; pulls it if that is due."""
        is_settled = (reference, uid) in self._fresh or not is_pulled_anew(reference)
        if is_settled and await engine.has_image(reference):
            return Present(self._fresh.get((reference, uid), ""))
        failed = self._failed.get(reference)
        if (pull := self._pulls.get(reference)) is not None:
            pull.waiting[uid] = waiter
            return _state(pull, failed)
        if failed is not None and failed.again_at is not None and failed.again_at > asyncio.get_running_loop().time():
            if not is_settled and await engine.has_image(reference):
                self._fresh[reference, uid] = failed.reason
                return Present(failed.reason)
            return failed
        pull = self._pulls[reference] = _Pull()
        pull.waiting[uid] = waiter
        pull.task = asyncio.create_task(self._run(engine, reference, pull), name=f"pull/{reference}")
        return _state(pull, failed)

    def forget(self, uid: str) -> None:
        """Drops what is remembered about an Instance that is gone. A pull under way goes on for others."""
        for key in [key for key in self._fresh if key[1] == uid]:
            del self._fresh[key]
        for pull in self._pulls.values():
            pull.waiting.pop(uid, None)

    def retry(self) -> None:
        """Forgets failures, which an engine that was away may have caused."""
        self._failed.clear()
        self._failures.clear()

    async def close(self) -> None:
        """Ends all pulls."""
        tasks = [pull.task for pull in self._pulls.values() if pull.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, engine: ContainerEngine, reference: str, pull: _Pull) -> None:
        try:
            async with self._slots:
                problem, text = await self._pull(engine, reference, pull)
        finally:
            del self._pulls[reference]
        if problem is None:
            self._failures.pop(reference, None)
            self._failed.pop(reference, None)
            self._fresh |= {(reference, uid): "" for uid in pull.waiting}
            _log.info("image pulled", image=reference)
        else:
            failures = self._failures[reference] = self._failures.get(reference, 0) + 1
            again_at = asyncio.get_running_loop().time() + wait_after(problem, failures)
            self._failed[reference] = Unavailable(problem, text, again_at, reference)
            _log.warning("image not pulled", image=reference, error=excerpt(text), failures=failures)
        self._wake_all(pull)

    async def _pull(self, engine: ContainerEngine, reference: str, pull: _Pull) -> tuple[PullProblem | None, str]:
        """Why the image was not pulled, and the engine's words; None if it is there."""
        text = ""
        try:
            async with aclosing(engine.pull(reference, await self._credentials(reference))) as steps:
                async for step in steps:
                    text = step.error or text
                    self._move(pull, step.fraction)
            if not text and not await engine.has_image(reference):
                text = "the container engine does not have it after the pull"
        except EngineAway as error:
            return PullProblem.NO_ANSWER, str(error)
        except Refused as error:
            text = error.message or str(error)
        return (pull_problem_in(text), text) if text else (None, "")

    def _move(self, pull: _Pull, fraction: float | None) -> None:
        progress = pull.progress.moved(fraction, asyncio.get_running_loop().time())
        if progress is not pull.progress:
            pull.progress = progress
            self._wake_all(pull)

    def _wake_all(self, pull: _Pull) -> None:
        for request in pull.waiting.values():
            self._wake(request)


def _state(pull: _Pull, failed: Unavailable | None) -> ImageState:
    """A pull that is made again counts as failed until it moves, so that its state does not go back and forth."""
    if failed is not None and pull.progress.fraction is None:
        return replace(failed, again_at=None)
    return Pulling(pull.progress.fraction)
