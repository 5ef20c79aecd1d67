"""Requests for planes that are not engaged yet. Entry point: `Missed`."""

from datum_compute.runtime.requests import Request

AT_MOST = 10_000


class Missed:
    """A bounded number of requests: names of planes come from outside, and invented ones must not fill the memory."""

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._at_most = at_most
        self._requests: dict[str, dict[Request, None]] = {}
        self._count = 0
        self._overflowed = False

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request) -> None:
        if self._overflowed:
            return
        requests = self._requests.setdefault(request.plane, {})
        if request not in requests:
            requests[request] = None
            self._count += 1
        if self._count > self._at_most:
            self._requests.clear()
            self._count, self._overflowed = 0, True

    def take(self, plane: str) -> list[Request] | None:
        """The requests missed on a plane; None when there were too many to remember, so any may have been."""
        requests = self._requests.pop(plane, {})
        self._count -= len(requests)
        return None if self._overflowed else list(requests)
