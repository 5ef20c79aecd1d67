"""Answers as pages. Entry points: `answer_page`, `steps`, `summary_table`."""

from collections.abc import Sequence
from datetime import datetime

from datum_compute.answers.advice import Advice
from datum_compute.answers.hops import Hop, State, Step
from datum_compute.answers.sentences import age_text
from datum_compute.answers.walk import City, Verdict
from datum_compute.answers.why import Answer, Block
from datum_compute.api import reasons
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Column, Item, Line, Piece, Table, bad, busy, good, line, table
from datum_compute.cli.show.views import Page

_BLOCKS = 3  # of causes on a page
_NARROW = 60
_WORDS = ("asked", "routed", "at the site", "created", "quota", "running")
_MARKS = {State.PASSED: "✓", State.BLOCKED: "✗", State.NEXT: "·", State.UNREAD: "?"}
_TONES = {Verdict.FINE: good, Verdict.BLOCKED: bad, Verdict.DEGRADED: bad, Verdict.STALLED: busy, Verdict.WAITING: busy}
_RETRIES = {
    reasons.QUOTA_EXCEEDED: "asked again by itself every 1m to 5m",
    reasons.QUOTA_NO_BUDGET: "asked again by itself every 1m to 5m",
    reasons.IMAGE_UNAVAILABLE: "tried again by itself",
    reasons.INSTANCE_CRASHING: "restarted by itself",
}


def answer_page(run: Run, answer: Answer, advice: Advice, ask: str, now: datetime) -> Page:
    """The sentence, the causes by city, and what to do."""
    tone = _TONES.get(answer.verdict)
    content: list[Item] = [line(tone(answer.sentence) if tone else answer.sentence)]
    limit = len(answer.blocks) if run.wide else _BLOCKS
    narrow = (run.environment.columns or _NARROW) < _NARROW
    rows = [row for block in answer.blocks[:limit] for row in _block_rows(block, now, narrow=narrow)]
    rows += _fine_rows(answer)
    if rows and (answer.blocks or run.wide):
        content += ["", table((Column(""), Column("", wraps=True)), rows, indent=2)]
    if hidden := len(answer.blocks) - limit:
        wide = run.try_next(f"why {answer.name} -o wide")
        content += ["", f"  and {hidden} other {'cause' if hidden == 1 else 'causes'}: {wide}"] if hidden > 0 else []
    if run.wide:
        content += [item for city in answer.cities for item in _path(city, now)]
    content += [item for text in answer.notes for item in ("", f"  {text}")]
    content += [item for text in _ends(answer, ask) for item in ("", f"  {text}")]
    return Page(content, notes=steps(run, advice))


def _block_rows(block: Block, now: datetime, *, narrow: bool) -> list[tuple[Piece, ...]]:
    first = block.first
    finding = first.finding
    assert finding is not None
    cities = ", ".join(dict.fromkeys(city.place.city for city in block.cities if city.place.city))
    since = ""
    if finding.since is not None:
        how = "for" if finding.exact else "not ready for"
        since = f" ({how} {age_text(now - finding.since)})"
    rows: list[tuple[Piece, ...]] = [(cities, f"{finding.message}{since}")]
    if finding.hop is not Hop.DELETION:
        words = _words(first)
        rows += [("", word) for word in words] if narrow else [("", "  ".join(words))]
    details = [f"instance {finding.instance}"] if finding.instance else []
    details += [_RETRIES[finding.reason]] if finding.reason in _RETRIES else []
    return [*rows, ("", "; ".join(details))] if details else rows


def _words(city: City) -> list[str]:
    """The hops, folded into six words with a mark each."""
    words = []
    for word in _WORDS:
        states = [step.state for step in city.path if step.hop.word == word]
        if not states:
            continue
        name = word
        if word == "quota" and city.finding is not None and city.finding.reason.startswith("Network"):
            name = "network"
        words.append(f"{name} {_MARKS[_folded(states)]}")
    return words


def _folded(states: Sequence[State]) -> State:
    for state in (State.BLOCKED, State.UNREAD, State.NEXT):
        if state in states:
            return state
    return State.PASSED


def _fine_rows(answer: Answer) -> list[tuple[Piece, ...]]:
    """Cities without a cause, those with the same numbers together."""
    groups: dict[tuple[int | None, int], list[str]] = {}
    for city in answer.fine:
        groups.setdefault((city.ready, city.desired), []).append(city.place.city)
    return [
        (", ".join(dict.fromkeys(cities)), f"nothing blocks it: {'—' if ready is None else ready} of {desired} ready")
        for (ready, desired), cities in groups.items()
    ]


def _path(city: City, now: datetime) -> list[Item]:
    rows: list[tuple[Piece, ...]] = [_step(step, now) for step in city.path]
    title = " ".join(filter(None, (city.place.placement, city.place.city)))
    return ["", f"  {title}", table(("HOP", "PLANE", "STATE", "OBJECT", "SINCE"), rows, indent=2)]


def _step(step: Step, now: datetime) -> tuple[Piece, ...]:
    tone = {State.BLOCKED: bad, State.PASSED: good}.get(step.state)
    state: Piece = tone(step.state.value) if tone else step.state.value
    since = age_text(now - step.since) if step.since is not None else ""
    return (step.hop.label, step.hop.plane, state, step.object, since)


def _ends(answer: Answer, ask: str) -> list[str]:
    """Where knowledge ended, and who knows more."""
    texts = []
    for unread in answer.unread:
        if unread.plane == "project":
            continue  # the cause itself says so
        what = {"denied": "you may not read", "away": "there is no answer from"}.get(unread.why.value, "I cannot read")
        texts.append(f"{what[:1].upper()}{what[1:]} the {unread.plane}; your operator can: {ask}")
    return texts


def steps(run: Run, advice: Advice) -> list[Line]:
    """What to do, as commands that work as printed."""
    lines: list[Line] = []
    if advice.do:
        lines += [line(""), line(f"  {'Do:':<9}  {run.try_next(' '.join(advice.do))}")]
    lines += [line(f"  {'Or:':<9}  {run.try_next(' '.join(words))}") for words in advice.alternatives]
    if advice.text and not advice.do:
        lines += [line(""), line(f"  {advice.text}")]
    return lines


def summary_table(answers: Sequence[Answer]) -> Table:
    """A line for each workload, the sentence last."""
    rows: list[tuple[Piece, ...]] = []
    for answer in answers:
        tone = _TONES.get(answer.verdict)
        verdict: Piece = tone(answer.verdict.value) if tone else answer.verdict.value
        rows.append((answer.name, verdict, answer.sentence))
    return table(("WORKLOAD", "VERDICT", Column("WHY", wraps=True)), rows)
