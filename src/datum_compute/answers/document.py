"""An answer as JSON, stable for programs. Entry point: `document`."""

from datetime import datetime
from typing import Any

from datum_compute.answers import sentences
from datum_compute.answers.advice import Advice
from datum_compute.answers.hops import Step
from datum_compute.answers.walk import City
from datum_compute.answers.why import Answer, Block
from datum_compute.kube.meta import Json, timestamp

VERSION = 1


def document(answer: Answer, advice: Advice, read_at: datetime, *, program: str, ask: str) -> Json:
    """Whatever is not known is null; nothing is left out. `ask` is the command that shows more."""
    cause = answer.cause
    finding = cause.finding if cause is not None else None
    since = finding.since if finding is not None else None
    return {
        "version": VERSION,
        "project": answer.project,
        "subject": {
            "kind": answer.kind,
            "name": answer.name,
            "uid": answer.uid or None,
            "generation": answer.generation or None,
        },
        "verdict": answer.verdict.value,
        "sentence": answer.sentence,
        "hop": finding.hop.label if finding else None,
        "reason": finding.reason if finding else None,
        "message": finding.message if finding else None,
        "who": cause.acts.value if cause is not None else None,
        "since": _time(since),
        "ageSeconds": max(int((read_at - since).total_seconds()), 0) if since else None,
        "normalSeconds": int(cause.normal.total_seconds()) if cause is not None and cause.normal else None,
        "next": {
            "do": [program, *advice.do] if advice.do else None,
            "or": [[program, *words] for words in advice.alternatives],
            "text": advice.text or None,
        },
        "cities": [_city(city, answer.name, read_at) for city in answer.cities],
        "unread": [{"plane": gap.plane, "why": gap.why.value, "ask": ask or None} for gap in answer.unread],
        "notes": list(answer.notes),
        "readAt": timestamp(read_at),
    }


def _city(city: City, name: str, now: datetime) -> Json:
    finding = city.finding
    blocks = [Block((city,))] if finding is not None else []
    return {
        "placement": city.place.placement,
        "city": city.place.city,
        "verdict": city.verdict.value,
        "hop": finding.hop.label if finding else None,
        "reason": finding.reason if finding else None,
        "message": finding.message if finding else None,
        "who": city.acts.value if finding else None,
        "since": _time(finding.since) if finding else None,
        "sentence": sentences.head(name, blocks, [city], now, 0),
        "desired": city.desired,
        "ready": city.ready,
        "instance": (finding.instance or None) if finding else None,
        "path": [_step(step) for step in city.path],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "hop": step.hop.label,
        "state": step.state.value,
        "plane": step.hop.plane,
        "object": step.object or None,
        "since": _time(step.since),
    }


def _time(moment: datetime | None) -> str | None:
    return timestamp(moment) if moment is not None else None
