"""How a command ends when it cannot do what was asked. Entry points: `Failure`, `Exit`."""

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
    INTERRUPTED = 130


class Failure(Exception):
    """One sentence, indented details, then advice: a line of its own, or the command to run next.

    `next_command` is without the program's name, which is added where it is printed.
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
    """Nothing is wrong; it only takes time. Told without the word Error."""

    prefix = ""


def usage(message: str, next_command: str = "") -> Failure:
    """What was typed cannot be meant."""
    return Failure(message, Exit.USAGE, next_command=next_command)
