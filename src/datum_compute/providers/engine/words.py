"""What the texts of container engines mean. Entry points: `refusal_in`, `pull_problem_in`, `excerpt`.

Texts differ between engines and versions, so they only choose between sentences for users. Whether something failed is
decided by what the engine has.
"""

import re
from enum import Enum

LONGEST_EXCERPT = 200


class Refusal(Enum):
    """Why a container was not created or started."""

    DISK_FULL = "disk full"
    PROGRAM_MISSING = "program missing"
    PROGRAM_UNUSABLE = "program unusable"  # there, but it cannot be executed
    OTHER_PROCESSOR = "other processor"
    PORT_TAKEN = "port taken"
    NAME_TAKEN = "name taken"  # by a container of somebody else
    OTHER = "other"


class PullProblem(Enum):
    """Why an image was not pulled; the value ends the sentence for users."""

    DISK_FULL = "the disk of the container engine is full"
    OTHER_PROCESSOR = "the registry has it only for other processors"
    NAME_INVALID = "the name is not valid"
    LIMITED = "the registry allows no more pulls for now"
    MISSING_OR_DENIED = "the registry does not have it, or wants credentials"
    MISSING = "the registry does not have it"
    DENIED = "the registry wants credentials"
    NO_ANSWER = "the registry does not answer"
    OTHER = ""  # the engine's own words say it


_FULL = r"no space left|disk quota exceeded|not enough space|enospc"
_PROCESSOR = (
    r"exec format error|no matching manifest|does not match the specified platform|no image found in .* for arch"
)

_REFUSALS = [
    (Refusal.DISK_FULL, _FULL),
    (Refusal.OTHER_PROCESSOR, _PROCESSOR),
    (Refusal.NAME_TAKEN, r"name .*(is already in use|already taken)"),
    (
        Refusal.PORT_TAKEN,
        r"port is already allocated|address already in use|ports? (are|is) not available|cannot expose p",
    ),
    (
        Refusal.PROGRAM_UNUSABLE,
        r"(exec|oci runtime|runc|crun|starting container process).*(permission denied|is a direct)",
    ),
    (Refusal.PROGRAM_MISSING, r"executable file .*not found|executable .*not found in \$path|no command specified"),
    (Refusal.PROGRAM_MISSING, r"(exec|oci runtime|runc|crun|container process).*(no such file|not found)"),
]

_PULL_PROBLEMS = [
    (PullProblem.DISK_FULL, _FULL),
    (PullProblem.OTHER_PROCESSOR, _PROCESSOR),
    (
        PullProblem.NAME_INVALID,
        r"invalid reference|must be lower ?case|parsing reference|invalid repository|invalid tag",
    ),
    (PullProblem.LIMITED, r"toomanyrequests|too many requests|rate limit"),
    (PullProblem.MISSING_OR_DENIED, r"does not exist or may require|access to the resource is denied"),
    (PullProblem.DENIED, r"unauthorized|authentication required|no basic auth|forbidden|denied|invalid username"),
    (
        PullProblem.NO_ANSWER,
        r"no such host|timeout|timed out|connection re(fused|set)|network is unreachable|no route to",
    ),
    (
        PullProblem.NO_ANSWER,
        r"dial tcp|server misbehaving|tls:|x509|bad gateway|service unavailable|\beof\b|does not answ",
    ),
    (
        PullProblem.MISSING,
        r"manifest unknown|name unknown|not found|does not exist|no such image|not known to registry",
    ),
]

_PROGRAM = re.compile(r'(?:exec:?|executable file) [\\"`]+([^\\"`]+)[\\"`]')


def refusal_in(text: str) -> Refusal:
    return next((refusal for refusal, pattern in _REFUSALS if re.search(pattern, _plain(text))), Refusal.OTHER)


def pull_problem_in(text: str) -> PullProblem:
    return next((problem for problem, pattern in _PULL_PROBLEMS if re.search(pattern, _plain(text))), PullProblem.OTHER)


def program_in(text: str) -> str:
    """The program that a text is about; empty if it names none."""
    match = _PROGRAM.search(text)
    return match[1] if match else ""


def excerpt(text: str) -> str:
    """The text as part of a sentence: on one line, without control characters, and not too long."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split()).rstrip(".")
    return line if len(line) <= LONGEST_EXCERPT else f"{line[: LONGEST_EXCERPT - 1]}…"


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
