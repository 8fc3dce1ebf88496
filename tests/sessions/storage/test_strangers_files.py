"""Who wrote a file does not matter: its structure, its content and its text are checked."""

from __future__ import annotations

import json
import secrets
import stat
from pathlib import Path

import h5py
import numpy as np
import pytest
import session_samples as samples

from sessions.errors import SessionError
from sessions.plain_text import for_spreadsheet, is_plain, json_escaped, one_line, plain, wrapped
from sessions.storage import _write, account_key, hdf5, seal
from sessions.tables import Column, Table

STEPS = "segments/0000/steps"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return a file with a checksum that anybody can compute."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "s.h5").write_bytes(_write.image(samples.session(n=50)))
    return tmp_path / "s.h5"


def restamp(path) -> None:
    content = bytearray(path.read_bytes())
    seal.stamp(memoryview(content))
    path.write_bytes(content)


def refusal(path) -> str:
    restamp(path)
    with pytest.raises(SessionError) as caught:
        hdf5.load(path)
    text = str(caught.value)
    assert text.startswith("Cannot open ") and text.endswith(".") and is_plain(text), text
    return text


def soft(file):
    del file[f"{STEPS}/t_s"]
    file[f"{STEPS}/t_s"] = h5py.SoftLink(f"/{STEPS}/wall_ms")


def external(file):
    file["more"] = h5py.ExternalLink("/etc/passwd", "/")


def twice(file):
    file["segments/0000/again"] = file[STEPS]


def cycle(file):
    file["segments/0000/loop"] = file["/"]


def virtual(file):
    del file[f"{STEPS}/t_s"]
    layout = h5py.VirtualLayout(shape=(50,), dtype="f8")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", shape=(50,))
    file.create_virtual_dataset(f"{STEPS}/t_s", layout)


def elsewhere(file):
    del file["events/text"]
    rows = len(file["events/t_s"])
    file.create_dataset(
        "events/text", shape=(rows,), dtype="S4", external=[("/etc/passwd", 0, 4 * rows)]
    )


def lzf(file):
    rows = file[f"{STEPS}/t_s"][()]
    del file[f"{STEPS}/t_s"]
    file.create_dataset(f"{STEPS}/t_s", data=rows, compression="lzf", chunks=(50,))


def bomb(file):
    for name in list(file[STEPS]):
        dtype = file[f"{STEPS}/{name}"].dtype
        del file[f"{STEPS}/{name}"]
        options = {"compression": "gzip", "chunks": (1 << 20,)}
        file.create_dataset(f"{STEPS}/{name}", data=np.zeros(4 << 20, dtype), **options)


def reference(file):
    file.create_dataset("events/more", data=[file.ref], dtype=h5py.ref_dtype)


def deep(file):
    file["segments/0000"].attrs["ledger"] = '{"a":' * 900 + "1" + "}" * 900


def negative_time(file):
    file[f"{STEPS}/t_s"][3] = -5.0


def unknown_time(file):
    file[f"{STEPS}/t_s"][3] = np.nan


def tiny(file):
    file[f"{STEPS}/wall_ms"][3] = 1e-44


def phase(file):
    file[f"{STEPS}/phase"][3] = 77


def arms(file):
    file["comparisons/0000"].attrs["arms"] = "[]"


def places(file):
    facts = json.loads(file["comparisons/0000"].attrs["facts"]) | {"segments": [0, 99]}
    file["comparisons/0000"].attrs["facts"] = json.dumps(facts)


def number_for_text(file):
    ledger = json.loads(file["segments/0000"].attrs["ledger"]) | {"numbers": 3}
    file["segments/0000"].attrs["ledger"] = json.dumps(ledger)


def text_for_a_count(file):
    facts = json.loads(file["comparisons/0000"].attrs["facts"]) | {"builds": "3"}
    file["comparisons/0000"].attrs["facts"] = json.dumps(facts)


def list_for_a_text(file):
    facts = json.loads(file["comparisons/0000"].attrs["facts"]) | {"difference": ["x", 3]}
    file["comparisons/0000"].attrs["facts"] = json.dumps(facts)


def long_label(file):
    file["segments/0000"].attrs["label"] = "x" * 5000


def fixed_text(file):
    file.attrs["title"] = np.bytes_(b"ascii")


def no_text(file):
    file.attrs["title"] = h5py.Empty("S1")


def formats(file):
    file.attrs["format"] = [1, 2]


def barely_outside(file):
    file["segments/0000"].attrs["index"] = 2**31


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (soft, "is a link to another file or name"),
        (external, "is a link to another file or name"),
        (twice, "also exists under another name"),
        (cycle, "under another name"),
        (virtual, "is virtual"),
        (elsewhere, "is stored in another file"),
        (lzf, "has filters that sessions do not use"),
        (bomb, "bytes of columns, more than a file of"),
        (reference, "is not a column of numbers or text"),
        (deep, "nested more than 32 deep"),
        (negative_time, "t_s in steps of segment 0 is -5"),
        (unknown_time, "t_s in steps of segment 0 has NaN"),
        (tiny, "wall_ms in steps of segment 0 is below 1e-09"),
        (phase, "phase in steps of segment 0 is 77"),
        (arms, "comparison 0 has 0 arms"),
        (places, "refers to segments that do not exist"),
        (number_for_text, "the facts of its segment 0 are not usable"),
        (text_for_a_count, "the facts of its comparison 0 are not usable"),
        (list_for_a_text, "the facts of its comparison 0 are not usable"),
        (long_label, "label of segment 0 has 5,000 characters"),
        (fixed_text, "its attribute title of / is bytes, expected str"),
        (no_text, "its attribute title of / is Empty, expected str"),
        (formats, "it is an HDF5 file, but not a session of this workbench"),
        (barely_outside, "segment 0 is 2147483648, expected 0 to 2147483647"),
    ],
)
def test_a_file_with_a_checksum_is_refused_for_what_it_holds(path, change, reason):
    with h5py.File(path, "r+") as file:
        change(file)
    assert reason in refusal(path)


def test_text_of_another_account_loses_its_control_characters(path):
    with h5py.File(path, "r+") as file:
        file.attrs["title"] = "a\x1b]0;b\x07\u202ec"
        file["segments/0000"].attrs["ledger"] = json.dumps({"numbers": "x\x1b[31m\u2066y"})
    restamp(path)
    session = hdf5.load(path)
    assert session.title == "a\ufffd]0;b\ufffd\ufffdc"
    assert session.segments[0].ledger == {"numbers": "x\ufffd[31m\ufffdy"}


def test_a_checked_copy_is_the_same_session(path):
    copy = hdf5.load(path)
    hdf5.save(samples.session(n=50), path)
    assert samples.content(copy) == samples.content(hdf5.load(path))


def test_only_the_key_of_this_account_saves_the_check(path, tmp_path, monkeypatch):
    hdf5.save(samples.session(n=50), path)
    checks = []
    check = hdf5.checked_copy
    monkeypatch.setattr(
        hdf5, "checked_copy", lambda *arguments: checks.append(1) or check(*arguments)
    )
    hdf5.load(path)
    assert not checks
    restamp(path)
    hdf5.load(path)
    assert len(checks) == 1
    hdf5.save(samples.session(n=50), path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    hdf5.load(path)
    assert len(checks) == 2


def test_the_key_is_read_by_its_user_alone_and_replaced_where_others_could(path):
    key = account_key.read_or_make()
    file = account_key.folder() / "account.key"
    assert key == account_key.read_or_make() and len(key) == account_key.SIZE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    assert account_key.read() is None
    assert account_key.read_or_make() not in (None, key)


def test_two_processes_that_make_the_key_at_once_end_with_the_same(path, monkeypatch):
    token_bytes = secrets.token_bytes
    keys = []

    def overtaken(size):
        monkeypatch.setattr(secrets, "token_bytes", token_bytes)
        keys.append(account_key.read_or_make())  # what another process does meanwhile
        return token_bytes(size)

    monkeypatch.setattr(secrets, "token_bytes", overtaken)
    assert [account_key.read_or_make()] == keys


def test_without_a_place_for_the_key_files_are_saved_and_checked(path, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert account_key.read_or_make() is None
    hdf5.save(samples.session(n=50), path)
    assert hdf5.load(path).title == "sample"


def test_plain_text_keeps_lines_and_letters():
    assert plain("a\tb\nc\r\nd é 中 \U0001f600") == "a\tb\nc\r\nd é 中 \U0001f600"
    assert plain("\x00\x1b\x7f\x9b\r\u200f\u202e\u2069\u2028") == "\ufffd" * 9
    assert one_line("a\nb  c" * 99, 10) == "a b ca b …"
    assert max(map(len, wrapped("x" * 500).splitlines())) == 90
    assert json.loads(json_escaped(json.dumps("\x9b\u202e", ensure_ascii=False))) == "\x9b\u202e"


@pytest.mark.parametrize("cell", ["=1+1", "+1+1", "-a", "@SUM(A1)", " =x", "\t=x", "-2+3"])
def test_a_cell_of_text_is_no_formula(cell):
    assert for_spreadsheet(cell) == f"'{cell}"
    table = Table("t", [Column(cell)], [[cell], [-1.5], ["-1.5"], ["a"]])
    lines = table.to_csv().splitlines()
    assert lines[0].strip('"').startswith("'") and lines[1].strip('"').startswith("'")
    assert lines[2:] == ["-1.50", "-1.5", "a"]


def test_no_descriptor_is_left_open_by_files_that_are_refused(path):
    with h5py.File(path, "r+") as file:
        external(file)
    refusal(path)
    before = len([*Path("/dev/fd").iterdir()])
    for _ in range(3):
        refusal(path)
    assert len([*Path("/dev/fd").iterdir()]) == before
