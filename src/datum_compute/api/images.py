"""The syntax of image references. Entry point: `is_image`."""

import re

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = rf"(?:{_HOST}(?:\.{_HOST})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
_IMAGE = re.compile(rf"(?P<name>(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*)(?::{_TAG})?(?:@{_DIGEST})?")
_LONGEST_NAME = 255


def is_image(text: str) -> bool:
    """Whether registries and container runtimes would accept the text: `[registry/]name[:tag][@digest]`."""
    match = _IMAGE.fullmatch(text)
    return match is not None and len(match["name"]) <= _LONGEST_NAME
