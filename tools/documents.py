"""YAML as generated files have it. Entry point: `yaml_text`."""

import yaml

from datum_compute.kube.meta import Json


class _Plain(yaml.SafeDumper):
    """Writes equal values out, instead of as anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def yaml_text(body: Json, width: int = 120) -> str:
    return yaml.dump(body, Dumper=_Plain, sort_keys=False, width=width)
