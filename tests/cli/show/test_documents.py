"""Documents keep their content, and nothing in them is hidden from the reader."""

import json
import unicodedata

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.show.documents import json_text, yaml_text
from datum_compute.cli.show.escapes import HIDDEN
from tests.cli.conftest import Compute, World, template

SPOOFED = {"image": "registry.example/\u202egnp.exe", "na\u200bme": "web\u2066", "tag": "a\U000e0041b", "plain": "café"}

# Also characters that are more often tried than drawn.
tried = st.sampled_from("\u200b\u202e\u2028\ufeff\xad\U000e0041\n \"'#")
texts = st.text(st.one_of(st.characters(codec="utf-8"), tried))


def test_yaml_spells_out_hidden_characters() -> None:
    assert yaml_text(SPOOFED) == (
        'image: "registry.example/\\u202egnp.exe"\n'
        '"na\\u200bme": "web\\u2066"\n'
        'tag: "a\\U000E0041b"\n'
        "plain: café\n"
    )  # fmt: skip


def test_json_spells_out_hidden_characters() -> None:
    assert json_text(SPOOFED, indent=0) == (
        '{"image":"registry.example/\\u202egnp.exe","na\\u200bme":"web\\u2066","tag":"a\\udb40\\udc41b","plain":"café"}\n'
    )


@pytest.mark.parametrize("ascii_only", [False, True])
@given(st.dictionaries(texts, st.one_of(texts, st.lists(texts)), max_size=3))
def test_documents_are_read_back_as_written(ascii_only: bool, value: dict[str, object]) -> None:
    for text, read in (
        (json_text(value, indent=2, ascii_only=ascii_only), json.loads),
        (yaml_text(value, ascii_only=ascii_only), yaml.safe_load),
    ):
        assert read(text) == value
        assert not HIDDEN.search(text)


@pytest.mark.parametrize("words", ["workloads", "workloads describe shop", "workloads describe shop -o yaml"])
def test_hidden_characters_of_an_image_are_visible_to_people(compute: Compute, world: World, words: str) -> None:
    world.workload(spec={"template": template("registry.example/shop:\u202e2\u200b")})
    result = compute(*words.split())
    assert result.code == 0
    assert r"shop:\u202e2\u200b" in result.out


def test_every_format_character_counts_as_hidden() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    unseen = [char for char in every if unicodedata.category(char) in ("Cf", "Zl", "Zp")]
    assert [hex(ord(char)) for char in unseen if not HIDDEN.match(char)] == []


def test_visible_characters_are_unchanged() -> None:
    text = "naïve — 東京 ❤\ufe0f עברית العربية \xa0 ½ 🙂"
    assert yaml.safe_load(yaml_text({"a": text})) == {"a": text}
    assert text in json_text({"a": text}, indent=0)
