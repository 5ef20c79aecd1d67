"""Plain values as JSON and YAML text. Entry points: `json_text`, `yaml_text`."""

from typing import Any

import msgspec

# JSON escapes only some of the characters that a terminal obeys.
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def json_text(value: Any, *, indent: int, ascii_only: bool = False) -> str:
    """With an indent of 0 it is compact, on one line."""
    if ascii_only:
        import json

        return json.dumps(_plain(value), indent=indent or None) + "\n"
    text = msgspec.json.encode(value)
    return msgspec.json.format(text, indent=indent or -1).decode().translate(_ESCAPED) + "\n"


def yaml_text(value: Any, *, ascii_only: bool = False) -> str:
    """In block style, keys in the order they have."""
    import yaml

    text: str = yaml.dump(
        _plain(value), Dumper=_dumper(), sort_keys=False, allow_unicode=not ascii_only, default_flow_style=False
    )
    return text


def _dumper() -> Any:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True  # the same value twice is written twice: people read this

    return Dumper


def _plain(value: Any) -> Any:
    """Plain values only, whatever JSON text was inside."""
    return msgspec.json.decode(msgspec.json.encode(value))
