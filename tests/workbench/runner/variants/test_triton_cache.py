"""A damaged entry of Triton's cache is recognised, and cleared, and nothing else is deleted."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Configuration
from workbench import protocol
from workbench.runner import triton_cache
from workbench.runner.engine import Engine
from workbench.runner.failures import explain
from workbench.runner.suggested_fixes import with_fix

ENTRY = "23AT3WLAGKI4HNKAKLJ6X4N5KMBCGCIOF3MBFCYQKG32DB5U7DOQ"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "named"))
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "home"))
    (tmp_path / "named").mkdir()
    return tmp_path / "named"


def test_only_entries_of_the_cache_are_deleted(folder, tmp_path):
    default = tmp_path / "home" / ".triton" / "cache"
    for cache in (folder, default):
        (cache / ENTRY).mkdir(parents=True)
        (cache / ENTRY / "kernel.cubin").write_bytes(b"0" * 500)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "text").write_text("years of work")
    (folder / ENTRY.lower()).write_text("a file")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / ENTRY.replace("2", "3")).symlink_to(elsewhere)
    wire = RecordingWire()
    Engine(wire)._clear_triton_cache()
    (note,) = (message for message in wire.sent if isinstance(message, protocol.Note))
    assert note.text.startswith("Triton's cache: 2 kernels, ") and "deleted" in note.text
    assert not (folder / ENTRY).exists() and not (default / ENTRY).exists()
    assert len(list(folder.iterdir())) == 3 and elsewhere.is_dir()
    assert triton_cache.clear() == (0, 0)


def errors(folder):
    path = folder / ENTRY / "cuda_utils.so"
    return {
        "linker": ImportError(f"{path}: undefined symbol: cuModuleLoad"),
        "missing": FileNotFoundError(2, "No such file or directory", str(path)),
        "image": RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
        "metadata": in_triton(),
    }


def in_triton():
    """Return a JSON error that is raised where Triton reads an entry."""
    code = compile("json.loads('')", "/x/triton/compiler/compiler.py", "exec")
    try:
        exec(code, {"json": json})
    except json.JSONDecodeError as error:
        return error


@pytest.mark.parametrize("kind", ["linker", "missing", "image", "metadata"])
def test_what_a_stale_entry_explains_is_cured_by_clearing_the_cache(folder, kind):
    inner = errors(folder)[kind]
    wrapped = RuntimeError("compilation failed")
    wrapped.__cause__ = inner
    for error in (inner, wrapped):
        failure = explain(error)
        assert failure.clears == "triton" and failure.kind == "compile"
        assert failure.fix.startswith("Clear Triton's cache") and str(folder) in failure.fix
        configuration = Configuration(family="hydra", preset="tiny")
        cured = with_fix(failure, configuration, torch.device("cpu"))
        assert cured == failure, "no toggle is suggested in its place"
        assert protocol.decode_message(protocol.encode(failure)) == msgspec.structs.replace(failure)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("/usr/lib/libcuda.so: undefined symbol"),
        FileNotFoundError(2, "No such file or directory", "/data/text"),
        json.JSONDecodeError("Expecting value", "", 0),
        RuntimeError("CUDA error: out of memory"),
        ValueError("a kernel"),
    ],
)
def test_other_errors_are_not_blamed_on_the_cache(folder, error):
    assert explain(error).clears == ""
