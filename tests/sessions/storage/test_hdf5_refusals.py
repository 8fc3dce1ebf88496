"""Every file that cannot be used ends in one sentence, whatever was done to it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import session_samples as samples
from hang_limit import HANG_S

from sessions.errors import SessionError
from sessions.storage import _check, hdf5, seal

CASES = 240
SLOWEST_S = 20.0  # of processor time


def refusal(path) -> str:
    with pytest.raises(SessionError) as caught:
        hdf5.load(path)
    return str(caught.value)


def is_sentence(text: str) -> bool:
    return text.startswith("Cannot open ") and text.endswith(".") and "\n" not in text


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "s.h5"
    hdf5.save(samples.session(n=3000), path)
    return path.read_bytes()


@pytest.fixture
def unsealed(tmp_path) -> Path:
    """Return a session as another program would write it: the same content, no seal."""
    sealed, path = tmp_path / "sealed.h5", tmp_path / "unsealed.h5"
    hdf5.save(samples.session(n=50), sealed)
    with h5py.File(sealed) as old, h5py.File(path, "w", libver="v110") as new:
        for name, value in old.attrs.items():
            if name != "sealed":
                new.attrs[name] = value
        for name in old:
            old.copy(name, new)
    return path


def damaged(original: bytes, number: int) -> bytes:
    """Case ``number``: a truncation, flipped bits, a range overwritten, cut out or doubled."""
    rng = random.Random(number)
    content = bytearray(original)
    # Half of the damage falls into the first bytes, where the seal and the HDF5 headers are.
    reach = len(content) if rng.random() < 0.5 else 4096
    start = rng.randrange(reach)
    length = min(rng.choice([1, 8, 64, 512, 4096]), len(content) - start)
    match number % 6:
        case 0:
            del content[start:]
        case 1:
            for _ in range(rng.choice([1, 1, 3])):
                content[rng.randrange(reach)] ^= 1 << rng.randrange(8)
        case 2:
            content[start : start + length] = rng.randbytes(length)
        case 3:
            content[start : start + length] = bytes([rng.choice([0, 0xFF])]) * length
        case 4:
            del content[start : start + length]
        case 5:
            content[start:start] = content[start : start + length]
    return bytes(content)


def test_every_damaged_file_is_refused_with_a_sentence_or_equal_to_the_original(tmp_path, original):
    expected = samples.content(samples.session(n=3000))
    refused = 0
    for number in range(CASES):
        path = tmp_path / f"{number}.h5"
        path.write_bytes(damaged(original, number))
        begin = time.process_time()
        try:
            loaded = hdf5.load(path)
        except SessionError as error:
            refused += 1
            assert is_sentence(str(error)), f"case {number}: {error}"
        else:
            assert samples.content(loaded) == expected, f"case {number} was changed unnoticed"
        assert time.process_time() - begin < SLOWEST_S, f"case {number}"
        path.unlink()
    assert refused > 0.95 * CASES


def test_every_damaged_file_without_a_seal_is_refused_or_read_without_other_errors(
    tmp_path, unsealed, monkeypatch
):
    monkeypatch.setattr(_check, "TIMEOUT_S", 2.0)
    original = unsealed.read_bytes()
    refused = 0
    # Case 27 makes HDF5 2.0 loop for ever, as about one case in sixty does.
    for number in [*range(11), 27]:
        path = tmp_path / f"{number}.h5"
        path.write_bytes(damaged(original, number))
        begin = time.process_time()
        try:
            loaded = hdf5.load(path)
            samples.content(loaded)
        except SessionError as error:
            refused += 1
            assert is_sentence(str(error)), f"case {number}: {error}"
        assert time.process_time() - begin < SLOWEST_S, f"case {number}"
    assert refused > 6


def test_session_of_another_program_without_a_seal_is_read_after_a_check(unsealed):
    assert samples.content(hdf5.load(unsealed)) == samples.content(samples.session(n=50))


def test_missing_file_is_refused(tmp_path):
    assert refusal(tmp_path / "no.h5").endswith("no.h5: there is no such file.")


def test_folder_is_refused(tmp_path):
    assert "it is a folder" in refusal(tmp_path)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe.h5")
    assert "it is not a regular file" in refusal(tmp_path / "pipe.h5")


def test_name_with_a_nul_is_refused():
    assert "null" in refusal("a\0b.h5")


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert is_sentence(refusal(tmp_path / "file" / "s.h5"))


def test_empty_file_is_refused(tmp_path):
    (tmp_path / "s.h5").touch()
    assert "it is empty" in refusal(tmp_path / "s.h5")


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(5000), bytes(600)])
def test_file_that_is_not_hdf5_is_refused(tmp_path, content):
    (tmp_path / "s.h5").write_bytes(content)
    assert "it is not an HDF5 file" in refusal(tmp_path / "s.h5")


def test_hdf5_file_of_another_kind_is_refused(tmp_path):
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["data"] = np.arange(10)
    assert "not a session of this workbench" in refusal(tmp_path / "s.h5")


def test_newer_sealed_file_is_refused_by_its_version_alone(tmp_path, original):
    content = original.replace(b"format version 1\n", b"format version 7\n", 1)
    (tmp_path / "s.h5").write_bytes(content[:300])
    assert "it has format version 7, but this program reads up to version 1" in refusal(
        tmp_path / "s.h5"
    )


def test_truncated_file_is_refused_with_both_sizes(tmp_path, original):
    (tmp_path / "s.h5").write_bytes(original[:2000])
    assert f"it is truncated: it has only 2,000 of its {len(original):,} bytes" in refusal(
        tmp_path / "s.h5"
    )


def test_single_flipped_bit_is_refused(tmp_path, original):
    content = bytearray(original)
    content[len(content) // 2] ^= 1
    (tmp_path / "s.h5").write_bytes(content)
    assert "its checksum does not match" in refusal(tmp_path / "s.h5")


def test_appended_bytes_are_refused(tmp_path, original):
    (tmp_path / "s.h5").write_bytes(original + b"\0")
    assert "its checksum does not match" in refusal(tmp_path / "s.h5")


def test_file_that_lost_its_seal_is_refused(tmp_path, original):
    (tmp_path / "s.h5").write_bytes(bytes(512) + original[512:])
    assert "its checksum is missing" in refusal(tmp_path / "s.h5")


def test_file_without_read_permission_is_refused(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    path.chmod(0)
    tmp_path.chmod(0o711)
    with as_ordinary_user():
        message = refusal(path)
    assert "you have no permission to read it" in message


def test_folder_without_write_permission_is_refused_for_saving(tmp_path):
    tmp_path.chmod(0o555)
    with as_ordinary_user(), pytest.raises(SessionError) as caught:
        hdf5.save(samples.session(), tmp_path / "s.h5")
    assert str(caught.value).startswith(f"Cannot save {tmp_path / 's.h5'}: Permission denied")


class as_ordinary_user:  # noqa: N801 - reads as a statement
    """Give up the rights of the superuser, whom no mode of a file keeps out."""

    def __enter__(self):
        self.user = os.geteuid()
        if self.user == 0:
            os.seteuid(65534)

    def __exit__(self, *_):
        os.seteuid(self.user)


@pytest.mark.parametrize("target", ["missing/s.h5", ".", "a\0b.h5", "x" * 300 + ".h5", "loop.h5"])
def test_saving_where_no_file_can_be_is_one_sentence(tmp_path, target):
    (tmp_path / "loop.h5").symlink_to(tmp_path / "loop.h5")
    with pytest.raises(SessionError) as caught:
        hdf5.save(samples.session(n=3), str(tmp_path / target))
    assert str(caught.value).startswith("Cannot save ")
    assert str(caught.value).endswith("; choose another place.")
    assert [path.name for path in tmp_path.iterdir()] == ["loop.h5"]


def test_full_disk_is_one_sentence_and_the_old_file_stays(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=10), path)
    before = path.read_bytes()
    script = (
        "import resource, signal, sys; sys.path[:0] = sys.argv[2:]\n"
        "import session_samples as samples\n"
        "from sessions.storage import hdf5\n"
        "from sessions.errors import SessionError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "try: hdf5.save(samples.session(n=5000), sys.argv[1])\n"
        "except SessionError as error: print(error)\n"
    )
    here = Path(__file__).parents[1]
    child = subprocess.run(
        # -B: Python would leave cut bytecode, which no process can load.
        [sys.executable, "-B", "-c", script, str(path), str(here), str(here.parents[1])],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert child.stdout == f"Cannot save {path}: File too large; choose another place.\n"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def spoil_version(file):
    file.attrs["version"] = 99


def spoil_version_type(file):
    file.attrs["version"] = "one"


def spoil_length(file):
    shorten(file, "segments/0000/steps/wall_ms", 40)


def spoil_type(file):
    replace(file, "segments/0000/steps/gpu_ms", np.zeros(50, "i8"))


def spoil_type_to_text(file):
    replace(file, "segments/0000/steps/gpu_ms", ["x"] * 50)


def spoil_shape(file):
    replace(file, "segments/0000/steps/gpu_ms", np.zeros((50, 1), "f4"))


def spoil_json(file):
    file["segments/0001"].attrs["configuration"] = '{"family": "hydra"'


def spoil_json_depth(file):
    file["segments/0001"].attrs["ledger"] = "[" * 100_000


def spoil_json_content(file):
    file["segments/0001"].attrs["configuration"] = '{"family": 3, "preset": "tiny"}'


def spoil_attribute(file):
    del file["segments/0000"].attrs["label"]


def spoil_group(file):
    del file["segments/0000/steps"]


def spoil_event_column(file):
    del file["events/text"]


def spoil_rows(file):
    del file["segments/0000/steps"]
    steps = file.create_group("segments/0000/steps")
    steps.create_dataset("t_s", shape=(10**12,), dtype="f8", chunks=(1024,))


def spoil_metric_axes(file):
    replace(file, "segments/0000/metrics/load/values", np.zeros((5, 6), "f4"))


def spoil_metric_type(file):
    replace(file, "segments/0000/metrics/load/values", np.zeros((5, 2, 3), "i8"))


def spoil_metric_length(file):
    shorten(file, "segments/0000/metrics/load/t_s", 4)


def spoil_metric_column(file):
    del file["segments/0000/metrics/load/values"]


def spoil_metric_attribute(file):
    del file["segments/0000/metrics/load"].attrs["row"]


def spoil_metric_rows(file):
    del file["segments/0000/metrics/load/values"]
    group = file["segments/0000/metrics/load"]
    group.create_dataset("values", shape=(10**12, 2, 3), dtype="f4", chunks=(1024, 2, 3))


def spoil_metrics(file):
    replace(file, "segments/0000/metrics", np.zeros(3))


def spoil_storage(file):
    del file["segments/0000/steps/t_s"]
    file["segments/0000/steps"].create_dataset(
        "t_s", shape=(50,), dtype="f8", external=[("/etc/hostname", 0, 400)]
    )


def replace(file, name, values):
    del file[name]
    file[name] = values


def shorten(file, name, rows):
    replace(file, name, file[name][:rows])


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_version, "it has format version 99"),
        (spoil_version_type, "its attribute version of / is str, expected int"),
        (spoil_length, "its columns in /segments/0000/steps differ in length (allocated 50, "),
        (spoil_type, "its /segments/0000/steps/gpu_ms has type int64, expected f4"),
        (spoil_type_to_text, "its /segments/0000/steps/gpu_ms has type object, expected f4"),
        (spoil_shape, "its /segments/0000/steps/gpu_ms has shape (50, 1), expected one axis"),
        (spoil_json, "the JSON in its attribute configuration of /segments/0001 is malformed"),
        (spoil_json_depth, "the JSON in its attribute ledger of /segments/0001 is malformed"),
        (spoil_json_content, "Expected `str`, got `int` - at `$.family`"),
        (spoil_attribute, "it lacks the attribute label of /segments/0000"),
        (spoil_group, "it lacks the group /segments/0000/steps"),
        (spoil_event_column, "its /events lacks the column text"),
        (spoil_rows, "declares 1,000,000,000,000 rows, more than it can hold"),
        (spoil_metric_axes, "metrics/load/values has shape (5, 6), expected 3 axes"),
        (spoil_metric_type, "metrics/load/values has type int64, expected f4"),
        (spoil_metric_length, "metrics/load differ in length (t_s 4, values 5)"),
        (spoil_metric_column, "metrics/load/values is not a column of numbers or text"),
        (spoil_metric_attribute, "it lacks the attribute row of /segments/0000/metrics/load"),
        (spoil_metric_rows, "values declares 1,000,000,000,000 rows, more than it can hold"),
        (spoil_metrics, "it lacks the group /segments/0000/metrics"),
        (spoil_storage, "its /segments/0000/steps/t_s is stored in another file"),
    ],
)
def test_wrong_content_is_named(unsealed, spoil, expected):
    with h5py.File(unsealed, "r+") as file:
        spoil(file)
    message = refusal(unsealed)
    assert expected in message
    assert is_sentence(message)


@pytest.mark.parametrize("column", ["steps/wall_ms", "metrics/load/values"])
def test_checksums_of_the_columns_find_a_flipped_bit_where_there_is_no_seal(unsealed, column):
    with h5py.File(unsealed) as file:
        chunk = file[f"segments/0000/{column}"].id.get_chunk_info(0)
    content = bytearray(unsealed.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 4
    unsealed.write_bytes(content)
    assert "it is damaged" in refusal(unsealed)


def test_file_changed_by_another_program_is_refused_until_it_is_accepted(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(), path)
    with h5py.File(path, "r+") as file:
        file.attrs["title"] = "edited"
    assert "python -m sessions.accept FILE" in refusal(path)
    hdf5.accept(path)
    expected = samples.session()
    expected.title = "edited"
    assert samples.content(hdf5.load(path)) == samples.content(expected)


def test_damaged_file_is_not_accepted(tmp_path, original):
    path = tmp_path / "s.h5"
    content = bytearray(original)
    with h5py.File(hdf5_image := tmp_path / "whole.h5", "w"):
        pass
    hdf5_image.write_bytes(original)
    with h5py.File(hdf5_image) as file:
        chunk = file["segments/0000/steps/wall_ms"].id.get_chunk_info(0)
    content[chunk.byte_offset + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(SessionError, match="it is damaged"):
        hdf5.accept(path)
    assert path.read_bytes() == content


def run_instead(monkeypatch, tmp_path, code: str) -> None:
    """Let the check run ``code`` in place of the check itself."""
    script = tmp_path / "instead"
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(_check.sys, "executable", str(script))


def test_file_on_which_the_library_hangs_is_refused_after_the_time_out(
    monkeypatch, tmp_path, unsealed
):
    run_instead(monkeypatch, tmp_path, "import time; time.sleep(1e6)")
    monkeypatch.setattr(_check, "TIMEOUT_S", 0.5)
    assert "reading it did not end within 1 s" in refusal(unsealed)


def test_file_on_which_the_library_crashes_is_refused(monkeypatch, tmp_path, unsealed):
    run_instead(monkeypatch, tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert "the HDF5 library crashed on it (signal 11)" in refusal(unsealed)


def test_check_that_fails_for_another_reason_says_which(monkeypatch, tmp_path, unsealed):
    run_instead(monkeypatch, tmp_path, "raise ImportError('no h5py here')")
    assert "it could not be checked: ImportError: no h5py here" in refusal(unsealed)


def test_files_that_this_program_wrote_here_never_start_a_check(monkeypatch, tmp_path, original):
    monkeypatch.setattr(hdf5, "checked_copy", lambda *_: pytest.fail("checked"))
    path = tmp_path / "s.h5"
    path.write_bytes(original)
    hdf5.load(path)


def test_damaged_sealed_file_never_reaches_the_hdf5_library(monkeypatch, tmp_path, original):
    monkeypatch.setattr(h5py, "File", lambda *_, **__: pytest.fail("opened"))
    path = tmp_path / "s.h5"
    path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    refusal(path)


def test_file_that_is_written_to_after_opening_never_reaches_the_hdf5_library_again(
    monkeypatch, tmp_path, original
):
    path = tmp_path / "s.h5"
    path.write_bytes(original)
    session = hdf5.load(path)
    with path.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"other")
    monkeypatch.setattr(h5py, "File", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(SessionError, match="after it was opened, it was changed"):
        session.segments[0].steps["t_s"]


def test_check_prints_its_refusal_as_json(tmp_path):
    (tmp_path / "s.h5").write_bytes(seal.HDF5_SIGNATURE)
    with (tmp_path / "s.h5").open("rb") as stream:
        child = subprocess.run(
            [sys.executable, "-m", "sessions.storage._check"],
            cwd=Path(hdf5.__file__).parents[2],
            stdin=stream,
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
    assert "it is damaged" in json.loads(child.stderr) and not child.stdout
