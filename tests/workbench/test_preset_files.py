"""Presets by name and by file: what they come to, and what is refused in one sentence."""

from __future__ import annotations

import json

import pytest

from workbench import presets, protocol


@pytest.fixture
def catalogue() -> protocol.Catalogue:
    def toggle(name, *options):
        return protocol.ToggleInfo(
            name=name,
            title=name.title(),
            help="",
            group="",
            options=[protocol.OptionInfo(name=option, title=option) for option in options],
            default=options[0],
        )

    return protocol.Catalogue(
        version=protocol.VERSION, created=0.0, device="cpu", device_title="", environment={},
        families=[], workloads=[], operators={},
        toggles=[toggle("speed", "off", "on"), toggle("size", "large", "small", "tiny")],
        presets=[protocol.TogglePreset(name="best", title="Best", help="",
                                       toggles={"speed": "on|off"})],
    )  # fmt: skip


def test_what_is_written_is_read_again(tmp_path, catalogue):
    path = tmp_path / "mine.json"
    both = {"a b/c": {"speed": "on", "size": "tiny"}, "Größe ≤ 2": {"size": "large"}}
    presets.write(path, both)
    assert presets.read(path) == both
    assert presets.find(f"@{path}:a b/c", catalogue) == (
        {"speed": "on|off", "size": "tiny|large"},
        [],
    )


def test_a_name_is_the_catalogues_and_a_file_with_one_preset_needs_none(tmp_path, catalogue):
    assert presets.find("@best", catalogue) == ({"speed": "on|off"}, [])
    path = tmp_path / "one.json"
    presets.write(path, {"only": {"speed": "off"}})
    assert presets.find(f"@{path}", catalogue) == ({"speed": "off"}, [])


def test_what_this_runner_does_not_have_is_left_out_and_told(catalogue):
    toggles = {"warp": "9", "size": "huge", "speed": "on"}
    assert presets.fit(toggles, catalogue) == (
        {"speed": "on|off"},
        [
            "there is no toggle 'warp' here, so warp=9 is left out",
            "Size has no option 'huge' here, so size=huge is left out",
        ],
    )


GOOD = {"workbench_presets": 1, "presets": {"a": {"speed": "on"}}}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is not a file of toggle sets"),
        ("[]", "is not a file of toggle sets"),
        ("\xff\xfe", "is not a file of toggle sets"),
        ("[" * 100_000, "is not a file of toggle sets"),
        (json.dumps({"toggles": {}}), "is not a file of toggle sets"),
        (json.dumps({**GOOD, "presets": {"a": {"speed": 1}}}), "is not a file of toggle sets"),
        (
            json.dumps({**GOOD, "workbench_presets": 2}),
            "has version 2, but this program reads version 1",
        ),
        (json.dumps({**GOOD, "presets": {}}), "has no named toggle set"),
        (json.dumps({**GOOD, "presets": {" ": {}}}), "has no named toggle set"),
    ],
)
def test_a_file_that_holds_no_presets_is_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "odd.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=sentence) as refusal:
        presets.read(path)
    assert str(refusal.value).startswith(str(path)) and "\n" not in str(refusal.value)


def test_names_and_files_that_are_not_there_are_refused(tmp_path, catalogue):
    with pytest.raises(ValueError, match="unknown toggle set 'worst'; expected one of best"):
        presets.find("@worst", catalogue)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        presets.find(f"@{tmp_path}/none.json", catalogue)
    path = tmp_path / "two.json"
    presets.write(path, {"a": {}, "b": {}})
    with pytest.raises(
        ValueError, match=r"the file has 2 toggle sets; choose a set with .*two\.json:NAME"
    ):
        presets.find(f"@{path}", catalogue)
    with pytest.raises(ValueError, match="no toggle set 'c'; choose a set with"):
        presets.find(f"@{path}:c", catalogue)
    with pytest.raises(ValueError, match="cannot be written"):
        presets.write(tmp_path / "no" / "folder.json", {"a": {}})
