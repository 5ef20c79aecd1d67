"""Plain values as JSON and YAML text. Entry points: `json_text`, `yaml_text`."""

from typing import Any

import msgspec

from datum_compute.cli.show.escapes import HIDDEN, escaped, visible


def json_text(value: Any, *, indent: int, ascii_only: bool = False) -> str:
    """JSON text; compact, on one line, with an indent of 0."""
    if ascii_only:
        import json

        return json.dumps(_plain(value), indent=indent or None) + "\n"
    text = msgspec.json.encode(value)
    return escaped(msgspec.json.format(text, indent=indent or -1).decode()) + "\n"


def yaml_text(value: Any, *, ascii_only: bool = False) -> str:
    """YAML text in block style, with keys in their order."""
    import yaml

    text: str = yaml.dump(
        _plain(value), Dumper=_dumper(), sort_keys=False, allow_unicode=not ascii_only, default_flow_style=False
    )
    # Strings with hidden characters are in double quotes, where YAML understands escapes.
    return HIDDEN.sub(lambda match: visible(match[0]), text)


def _dumper() -> Any:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True  # for people, a value that occurs twice is written twice

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if HIDDEN.search(value) else None)

    Dumper.add_representer(str, text)
    return Dumper


def _plain(value: Any) -> Any:
    """The value with embedded JSON text decoded."""
    return msgspec.json.decode(msgspec.json.encode(value))
