"""Plain values as JSON and YAML text. Entry points: `json_text`, `yaml_text`."""

from typing import Any

import msgspec

from datum_compute.cli.show.escapes import HIDDEN, escaped, visible


def json_text(value: Any, *, indent: int, ascii_only: bool = False) -> str:
    """With an indent of 0 it is compact, on one line."""
    if ascii_only:
        import json

        return json.dumps(_plain(value), indent=indent or None) + "\n"
    text = msgspec.json.encode(value)
    return escaped(msgspec.json.format(text, indent=indent or -1).decode()) + "\n"


def yaml_text(value: Any, *, ascii_only: bool = False) -> str:
    """In block style, keys in the order they have."""
    import yaml

    text: str = yaml.dump(
        _plain(value), Dumper=_dumper(), sort_keys=False, allow_unicode=not ascii_only, default_flow_style=False
    )
    # What is hidden stands between double quotes, where YAML reads an escape as the character itself.
    return HIDDEN.sub(lambda found: visible(found[0]), text)


def _dumper() -> Any:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True  # the same value twice is written twice: people read this

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if HIDDEN.search(value) else None)

    Dumper.add_representer(str, text)
    return Dumper


def _plain(value: Any) -> Any:
    """Plain values only, whatever JSON text was inside."""
    return msgspec.json.decode(msgspec.json.encode(value))
