"""Tuning: the fastest right tile is selected, stored on disk, and independent of the batch size.

The search runs on the CPU over made-up kernels with made-up times; behaviour that needs a GPU is in
test_tuning_gpu.py.
"""

import inspect
import json
import logging
import math
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import OPS, Mistake
from kernels.core import dispatch, triton_helpers, tuned_files
from kernels.core import tuning as _tuning
from kernels.core.check import as_tuple
from kernels.core.tuned_files import Timed
from kernels.core.tuning import TUNABLES, Tunable, reset_tiles, tiles, tuning
from kernels.fused_linear import MOST_ROWS

TIMES_US = {1: 50.0, 2: 40.0, 3: 30.0, 4: 20.0, 5: 10.0}
GPU, CAN_BE_TIMED = _tuning._gpu, _tuning._can_be_timed
WITH_TRITON = sorted(name for name, op in OPS.items() if "triton" in op.implementations)


class Doubling:
    """Kernel y = 2 x with tiles (1,) to (5,), the heuristic's first; ``wrong`` replaces results."""

    def __init__(self, name="doubling", source="v1", wrong=None, candidates=(1, 2, 3, 4, 5)):
        self.wrong = wrong or {}
        self.launched, self.queries = [], 0
        self.tiles = [(number,) for number in candidates]
        kernel = SimpleNamespace(cache_key=source)
        self.tunable = Tunable(name, (kernel,), self.candidates)

    def candidates(self, device, width, dtype):
        self.queries += 1
        return self.tiles

    def __call__(self, x):
        (tile,) = self.tunable.tile((0, x.shape[1], x.dtype), self, x)
        self.launched.append(tile)
        return self.wrong.get(tile, lambda x: 2 * x)(x)


def fails(x):
    raise RuntimeError("out of resource: shared memory")


@pytest.fixture(autouse=True)
def imagined(monkeypatch, tmp_path):
    """Simulate a GPU on which a tile takes its time in TIMES_US."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_tuning, "_gpu", lambda device: "Imagined GPU")
    monkeypatch.setattr(_tuning, "_can_be_timed", lambda args: True)
    monkeypatch.setattr(_tuning, "TUNABLES", dict(TUNABLES))
    timed = []

    def times_us(call, device):
        call()
        timed.append(device)
        return [TIMES_US[DOUBLING[-1].launched[-1]]] * 3

    monkeypatch.setattr(_tuning, "_times_us", times_us)
    reset_tiles()
    yield timed
    DOUBLING.clear()
    reset_tiles()


DOUBLING: list[Doubling] = []


def doubling(**options) -> Doubling:
    DOUBLING.append(Doubling(**options))
    return DOUBLING[-1]


X = torch.arange(1.0, 13).view(3, 4)


def choice():
    (only,) = tiles()
    return only


# The search


def test_the_fastest_of_the_tiles_is_taken_and_told(imagined):
    double = doubling()
    with tuning("on"):
        assert torch.equal(double(X), 2 * X)
    chosen = choice()
    assert (chosen.tile, chosen.heuristic, chosen.source) == ((5,), (1,), "tuned")
    assert (chosen.us, chosen.heuristic_us) == (10.0, 50.0)
    assert str(chosen).startswith("doubling [4,float32]: (5,) (tuned), 10.0 us, heuristic 50.0")
    assert double.launched[-1] == 5
    again = len(imagined)
    with tuning("on"):
        double(X)
    assert len(imagined) == again, "and timed once"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (fails, "failed: RuntimeError: out of resource: shared memory"),
        (lambda x: 2.001 * x, "wrong: result 0 has largest error"),
        (lambda x: torch.empty_like(x), "wrong: result 0 is finite at different positions"),
        (lambda x: (2 * x)[:2], "wrong: result 0 has shape (2, 4)"),
        (lambda x: (2 * x, x), "wrong: the number of results is 2 instead of 1"),
        (lambda x: (2 * x).long(), "wrong: result 0 has shape (3, 4) and torch.int64"),
    ],
    ids=["fails", "wrong", "unwritten", "shape", "count", "dtype"],
)
def test_a_tile_that_fails_or_gives_something_else_is_dropped_however_fast(spoil, reason):
    double = doubling(wrong={5: spoil, 4: lambda x: 2 * x * (1 + 1e-6)})
    with tuning("on"):
        assert torch.equal(double(X), 2 * X * (1 + 1e-6))
    chosen = choice()
    assert chosen.tile == (4,), "which differs by rounding alone"
    assert chosen.dropped.keys() == {(5,)} and chosen.dropped[5,].startswith(reason)


def test_integers_must_be_the_same():
    double = doubling(wrong={5: lambda x: x.int() * 2 + (x == 3).int()} | dict.fromkeys(
        (1, 2, 3, 4), lambda x: x.int() * 2
    ))  # fmt: skip
    with tuning("on"):
        double(X)
    assert choice().tile == (4,) and "different integers" in choice().dropped[5,]


def test_a_gain_within_noise_leaves_the_heuristic_s_tile(monkeypatch):
    monkeypatch.setitem(TIMES_US, 2, 49.5)
    double = doubling(candidates=(1, 2))
    with tuning("on"):
        double(X)
    assert choice().tile == (1,) and choice().source == "tuned"


def test_zeros_are_not_timed_nor_compared():
    seen = []

    def look(x):
        seen.append(x)
        return 2 * x

    double = doubling(wrong=dict.fromkeys(range(1, 6), look))
    with tuning("on"):
        double(torch.zeros(3, 4))
    assert all(x.any() for x in seen[:-1]) and not seen[-1].any()


def test_what_is_written_in_place_is_compared_and_the_caller_s_tensors_are_left_alone():
    def launch(x):
        (tile,) = tunable.tile((0, 4), launch, x)
        double.launched.append(tile)
        x.mul_(3 if tile == 5 else 2)

    double = doubling()
    kernel = SimpleNamespace(cache_key="v1")
    tunable = Tunable("in place", (kernel,), lambda *key: double.tiles, in_place=True)
    x = X.clone()
    with tuning("on"):
        launch(x)
    assert torch.equal(x, 2 * X), "written once, by the tile that was taken"
    assert choice().tile == (4,) and choice().dropped.keys() == {(5,)}


def test_short_memory_leaves_the_heuristic_and_says_so(imagined, monkeypatch):
    def short(call, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(_tuning, "_times_us", short)
    double = doubling()
    with tuning("on"):
        assert torch.equal(double(X), 2 * X)
    assert (choice().tile, choice().source) == ((1,), "heuristic")
    assert choice().note == "not tuned: not enough memory"


# When nothing is timed


def test_the_heuristic_decides_unless_asked_otherwise(imagined):
    double = doubling()
    for mode in ("off", "cached"):
        with tuning(mode):
            double(X)
    assert double.launched == [1, 1] and not imagined
    with pytest.raises(Mistake, match="unknown mode 'fast'; expected one of"), tuning("fast"):
        pass


def test_a_key_that_is_known_costs_a_look_into_a_table():
    double = doubling()
    for _ in range(4):
        double(X)
    assert double.queries == 1
    double(X[:, :3])
    assert double.queries == 2


@pytest.mark.parametrize("where", ["interpreter", "no GPU", "capture"])
def test_the_heuristic_decides_where_nothing_can_be_timed(imagined, monkeypatch, where):
    if where == "capture":
        monkeypatch.setattr(_tuning, "_can_be_timed", lambda args: False)
    else:
        monkeypatch.setattr(_tuning, "_gpu", GPU)
        monkeypatch.setattr(_tuning, "INTERPRETED", where == "interpreter")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: where == "interpreter")
        assert _tuning._gpu(0) is None
    double = doubling()
    with tuning("on"):
        double(X)
    assert double.launched == [1] and not imagined
    if where == "capture":
        monkeypatch.setattr(_tuning, "_can_be_timed", lambda args: True)
        with tuning("on"):
            double(X)
        assert double.launched[-1] == 5, "and is tuned at the next call"


def test_tensors_that_may_have_no_memory_and_captures_are_not_timed(monkeypatch):
    class Other(torch.Tensor):
        pass

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert CAN_BE_TIMED((X, None, torch.nn.Parameter(X), 3))
    assert not CAN_BE_TIMED((X, X.as_subclass(Other)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not CAN_BE_TIMED((X,))


def test_what_traces_gets_what_is_known_and_times_nothing(imagined):
    double = doubling()
    with tuning("on"):
        assert _tuning._while_tracing("doubling", 0, 4, torch.float32) == (1,)
        assert not imagined
        double(X)
        assert _tuning._while_tracing("doubling", 0, 4, torch.float32) == (5,)


def test_modes_end_with_their_block_also_by_an_error(imagined):
    double = doubling()
    with pytest.raises(RuntimeError), tuning("off"), tuning("on"):
        raise RuntimeError
    double(X)
    assert double.launched == [1] and not imagined


# The table on disk


def forgotten(**options) -> Doubling:
    """Return the same kernel as a new process would see it."""
    reset_tiles()
    return doubling(**options)


def test_a_tile_on_disk_is_taken_by_cached_and_not_by_off(imagined):
    double = doubling()
    with tuning("on"):
        double(X)
    timed = len(imagined)
    for mode, tile, source in (("cached", 5, "disk"), ("off", 1, "heuristic"), ("on", 5, "disk")):
        later = forgotten()
        with tuning(mode):
            later(X)
        assert (later.launched, choice().source) == ([tile], source)
    assert len(imagined) == timed


@pytest.mark.parametrize("changed", [{"source": "v2"}, {"candidates": (1, 2)}, {"name": "other"}])
def test_another_kernel_or_a_tile_that_is_no_candidate_is_not_taken_from_disk(changed):
    with tuning("on"):
        doubling()(X)
    later = forgotten(**changed)
    later(X)
    assert later.launched == [1]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": 2, "tiles": {}}', b"\xff\x00", b'{"format": 1, "tiles": 3}',
     b'{"format": 1, "tiles": {"4,float32": {"tile": 5, "us": 1, "heuristic_us": 1}}}'],
)  # fmt: skip
def test_a_damaged_file_is_ignored_with_the_reason_and_replaced(content, caplog):
    double = doubling()
    file = double.tunable._file("Imagined GPU")
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING), tuning("on"):
        double(X)
    assert (
        str(file) in caplog.text
        and "is ignored, and its entries will be timed again:" in caplog.text
    )
    assert double.launched[-1] == 5
    assert tuned_files.load(file)["4,float32"] == Timed((5,), 10.0, 50.0)


def test_writers_at_the_same_time_lose_nothing_and_leave_no_other_files(tmp_path):
    file = tmp_path / "kernel.json"
    writers = [
        threading.Thread(target=tuned_files.add, args=(file, str(n), Timed((n,), 1.0, 2.0)))
        for n in range(12)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert tuned_files.load(file).keys() == {str(n) for n in range(12)}
    assert {path.name for path in tmp_path.iterdir()} == {"kernel.json", "kernel.lock"}


def test_a_lock_that_stays_ends_in_a_sentence_and_not_in_a_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned_files, "LOCK_S", 0.1)
    file = tmp_path / "kernel.json"
    with FileLock(file.with_suffix(".lock")):
        why = tuned_files.add(file, "key", Timed((1,), 1.0, 2.0))
    assert why == (
        f"another process has locked {file.with_suffix('.lock')} for 0.1 s; remove that file if no "
        "process uses it, or it is timed again next time"
    )
    assert not tuned_files.add(file, "key", Timed((1,), 1.0, 2.0))


def test_a_file_system_without_locks_ends_in_a_sentence(tmp_path, monkeypatch):
    def lock(*_, **__):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(tuned_files, "FileLock", lock)
    why = tuned_files.add(tmp_path / "kernel.json", "key", Timed((1,), 1.0, 2.0))
    assert why.startswith(f"{tmp_path} cannot be written (FileSystem does not appear to support")


SECOND = """
import json, sys
from types import SimpleNamespace
from kernels.core import tuned_files, tuning
tuning._gpu = lambda device: "Imagined GPU"
kernel = SimpleNamespace(cache_key="v1")
tunable = tuning.Tunable("doubling", (kernel,), lambda *key: [(1,), (5,)])
import torch
tile = tunable.tile((0, 4, torch.float32), None)
tuned_files.add(tunable._file("Imagined GPU"), "of the second", tuned_files.Timed((7,), 1, 2))
print(json.dumps([tile, tuning.tiles()[0].source]))
"""


def test_a_second_process_takes_what_the_first_has_tuned_and_adds_to_it():
    double = doubling()
    with tuning("on"):
        double(X)
    done = subprocess.run([sys.executable, "-c", SECOND], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[5], "disk"]
    stored = tuned_files.load(double.tunable._file("Imagined GPU"))
    assert stored.keys() == {"4,float32", "of the second"}


# The kernels that there are


def keys_of(op, rows: int, monkeypatch) -> set[tuple]:
    """Return the keys of forward and backward at a number of rows, on tensors without memory."""
    from torch._subclasses import FakeTensorMode
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    queries = set()
    settle = Tunable.settle

    def note(self, key, launch, args):
        queries.add((self.name, key))
        return settle(self, key, launch, args)

    monkeypatch.setattr(Tunable, "settle", note)
    case = op.cases[0]
    sizes = dict(case.sizes)
    sizes[next(name for name in ("rows", "batch") if name in sizes)] = rows
    with FakeTensorMode() as mode:
        with unset_fake_temporarily():
            inputs = op.inputs(kernels.Case("", sizes), torch.device("cpu"), torch.float32, 0)
        inputs = {
            name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x
            for name, x in inputs.items()
        }
        leaves = [inputs[n].requires_grad_() for n in op.gradients if inputs.get(n) is not None]
        outputs = as_tuple(op.implementations["triton"](*inputs.values()))
        live = [y for y in outputs if y.requires_grad]
        if live:
            torch.autograd.grad(live, leaves, [torch.empty_like(y) for y in live])
    monkeypatch.setattr(Tunable, "settle", settle)
    return queries


@pytest.mark.skipif(not triton_helpers.INSTALLED, reason="Triton is not installed")
@pytest.mark.skipif(
    triton_helpers.INTERPRETED, reason="the interpreter launches what has no memory"
)
@pytest.mark.parametrize("name", WITH_TRITON)
def test_the_keys_of_a_kernel_do_not_hold_the_batch(name, monkeypatch):
    from triton.runtime.jit import JITFunction

    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)
    monkeypatch.setattr(_tuning, "_gpu", lambda device: None)
    monkeypatch.setattr(dispatch, "_missing_once", lambda *_: "")
    op = OPS[name]
    # The tiles of fused linear layers are for a few rows.
    batch_sizes = st.integers(1, MOST_ROWS) if name == "fused_linear" else st.integers(200, 500)

    @settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(batch_sizes, min_size=6, max_size=6, unique=True))
    def holds(batches):
        queries = [keys_of(op, batch, monkeypatch) for batch in batches]
        if not queries[0]:  # a kernel need not be tuned
            own = inspect.getsource(sys.modules[op.function.__module__])
            assert "Tunable(" not in own, "the operator asks for no tile"
            return
        by_kernel: dict[str, set] = {}
        for keys in queries:
            for kernel, key in keys:
                by_kernel.setdefault(kernel, set()).add(key)
                hash(key)
        # A pass uses a few keys of one kernel; each may have two or three size classes.
        most = {kernel: max(sum(k == kernel for k, _ in keys) for keys in queries) for kernel, _ in
                queries[0]}  # fmt: skip
        grown = {k: keys for k, keys in by_kernel.items() if len(keys) > 2 * most.get(k, 1)}
        assert not grown

    holds()


def test_each_tunable_of_the_sources_is_registered_under_a_name_of_its_own():
    sources = [p.read_text() for p in Path(kernels.__file__).parent.rglob("*.py")]
    declared = sum(line.count("= Tunable(") for text in sources for line in text.splitlines())
    assert declared == len(TUNABLES) > 25


def test_a_choice_without_a_time_says_where_it_came_from():
    double = doubling()
    double(X)
    assert str(choice()) == "doubling [4,float32]: (1,) (heuristic)"
    assert math.isnan(choice().us)
