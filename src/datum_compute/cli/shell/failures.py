"""Failures and exit codes of commands. Entry points: `Failure`, `Exit`."""

from collections.abc import Sequence
from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    TIMED_OUT = 5
    ROLLOUT_FAILED = 6
    NOT_ALLOWED = 7
    DIFFERENT = 8
    DECLINED = 9
    NOT_ENABLED = 10
    DENIED = 11
    PENDING = 12
    UNAVAILABLE = 13
    NOT_FINE = 14
    INTERRUPTED = 130


class Failure(Exception):
    """An error for people: one sentence, details below it, then advice in words or a command to run next.

    The name of the program is put before `next_command` when it is printed.
    """

    prefix = "Error: "

    def __init__(
        self,
        message: str,
        code: Exit = Exit.FAILED,
        *,
        details: Sequence[str] = (),
        next_command: str = "",
        advice: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = tuple(details)
        self.next_command = next_command
        self.advice = advice


class NotYet(Failure):
    """Nothing is wrong, but it takes more time. Printed without the word Error."""

    prefix = ""


def usage(message: str, next_command: str = "") -> Failure:
    """A failure caused by the command line."""
    return Failure(message, Exit.USAGE, next_command=next_command)
