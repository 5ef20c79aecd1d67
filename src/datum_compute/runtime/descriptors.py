"""How many files and connections a process may have open. Entry point: `allow_many`."""

import resource
from contextlib import suppress


def allow_many() -> None:
    """For programs, once at their start: as many as whoever runs them allows at all.

    The limit that is in force first is often 1,024, kept low for programs of old; servers with clients and many planes
    need more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a machine may have a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
