"""Scripts with modules of our names, forks, workers and a ``sitecustomize`` of their own."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from workbench.instrument.recording import SUFFIX, NewestSteps, Recording
from workbench.runner.script.reader import Reader

LOOP = """
import time, workbench
for batch in workbench.watch(range(30)):
    time.sleep(0.002)
"""
OWN_MODULES = """
import kernels, models, sessions, workbench
assert (kernels.NAME, models.NAME, sessions.NAME) == ("own", "own", "own")
"""
PROCESSES = """
import multiprocessing, os, time
import workbench
def work(count):
    for _ in workbench.watch(range(count)):
        pass
if __name__ == "__main__":
    for batch in workbench.watch(range(30)):
        time.sleep(0.01)
        if batch == 10 and (child := os.fork()) == 0:
            os._exit(0)
    spawned = multiprocessing.get_context("spawn").Process(target=work, args=(5,))
    spawned.start(), spawned.join()
    forked = multiprocessing.get_context("fork").Process(target=work, args=(5,))
    forked.start(), forked.join()
"""
FORKED = """
import multiprocessing, time
import workbench
def work():
    for _ in workbench.watch(range(30)):
        time.sleep(0.001)
forked = multiprocessing.get_context("fork").Process(target=work)
forked.start(), forked.join()
"""
COPIES = """
import copy, multiprocessing, time
import workbench
def work(loader):
    for _ in loader:
        time.sleep(0.001)
if __name__ == "__main__":
    loader = workbench.watch(range(30))
    spawned = multiprocessing.get_context("spawn").Process(target=work, args=(loader,))
    spawned.start(), spawned.join()
    assert not spawned.exitcode
    for other in (copy.copy(loader), copy.deepcopy(loader)):
        work(other)
"""
FETCHED_AHEAD = """
import queue, threading, time
import torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, index):
        time.sleep(0.01)
        return index
batches = queue.Queue()
def fetch():
    for batch in torch.utils.data.DataLoader(Slow()):
        batches.put(batch)
threading.Thread(target=fetch).start()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
for _ in range(30):
    time.sleep(0.01)
    optimizer.step()
"""
KILLED = """
import os, signal, time, workbench
for batch in workbench.watch(range(30)):
    if batch == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""
LEAVES_AT_ONCE = """
import os, sys, workbench
for batch in workbench.watch(range(30)):
    pass
{leave}
"""
CLOSES_FILES = """
import os, time, workbench
for batch in workbench.watch(range(30)):
    if batch == 10:
        os.closerange(3, 256)
        own = open("own", "wb")
    time.sleep(0.03)
"""
STARTS_ANOTHER = """
import subprocess, sys, torch
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
for step in range(31):
    if step == 5:
        code = "import time, workbench; [time.sleep(0.1) for _ in workbench.watch(range(9))]"
        subprocess.run([sys.executable, "-c", code], check=True)
    optimizer.step()
"""
LOOKS_FOR_TORCH = """
import importlib.util
assert importlib.util.find_spec("torch")
"""
FAILS_TO_IMPORT_TORCH = """
import sys
path, sys.path = sys.path, [entry for entry in sys.path if "site-packages" not in entry]
try:
    import torch
except ImportError:
    sys.path = path
else:
    raise AssertionError
"""
OPTIMIZER_LOOP = """
import torch
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
for _ in range(30):
    optimizer.step()
"""


def count_steps(reader: Reader) -> int:
    return sum(len(entry.get("rows", [])) for entry in reader.read())


def test_a_script_keeps_its_own_modules_of_our_names(record, write):
    for name in ("kernels.py", "sessions.py"):
        write("NAME = 'own'", name)
    (script := write(OWN_MODULES + LOOP)).with_name("models").mkdir()
    script.with_name("models").joinpath("__init__.py").write_text("NAME = 'own'")
    assert count_steps(record(script)) == 30


def test_a_workbench_of_its_own_stays_the_scripts(record, write):
    write("NAME = 'own'", "workbench.py")
    record(write("import workbench; assert workbench.NAME == 'own'"))


def test_forks_and_workers_are_other_processes(record, write, tmp_path):
    """A fork inherits the recording and does not continue it; a spawned process has its own."""
    reader = record(write(PROCESSES))
    texts = [path.read_text() for path in (tmp_path / "recording").glob(f"*{SUFFIX}")]
    assert [text.count('"pid"') for text in texts] == [1, 1, 1]  # processes that stepped
    assert count_steps(reader) > 0
    assert reader.left_out == 2


def test_a_process_that_multiprocessing_forks_writes_its_last_steps(record, write):
    assert count_steps(record(write(FORKED))) == 30


def test_the_last_steps_of_a_killed_script_are_recorded(run, write):
    result = run("run", script=(write(KILLED),))
    assert result.code == 128 + signal.SIGKILL
    steps = result.session.segments[0].steps
    assert len(steps["t_s"]) == 20
    assert np.all(np.diff(steps["t_s"]) > 0)


def test_a_full_disk_has_no_memory_for_the_newest_steps():
    """Without space for it, a write into the mapped file would end the script."""
    assert NewestSteps.in_file("/dev/full") is None


@pytest.mark.parametrize(
    "leave", ["os._exit(0)", "os.execv(sys.executable, [sys.executable, '-c', ''])"]
)
def test_a_script_that_leaves_without_exit_handlers_writes_its_last_steps(record, write, leave):
    assert count_steps(record(write(LEAVES_AT_ONCE.format(leave=leave)))) == 30


def test_a_script_that_leaves_at_once_does_not_wait_for_its_gpu(tmp_path):
    """The GPU may hang, and be the reason why the script leaves."""
    recording, left = Recording(str(tmp_path)), []
    unfinished = SimpleNamespace(query=lambda: False)  # it has no ``synchronize``
    recording.clock = SimpleNamespace(elapsed_ms=lambda start, stop: 1.0)
    finished = SimpleNamespace(query=lambda: True)
    recording._rows += [(1, 2, 0, finished, finished), (2, 3, 0, finished, unfinished)]
    recording._written_before(left.append)(0)
    assert left == [0]
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    lines = map(json.loads, path.read_text().splitlines())
    assert [line["rows"] for line in lines if "rows" in line] == [[[1, 2, 0, 1.0]]]


def test_a_watched_loader_can_be_copied_and_sent_to_another_process(record, write, tmp_path):
    record(write(COPIES))
    lines = [line for path in (tmp_path / "recording").glob(f"*{SUFFIX}") for line in path.open()]
    assert sum(len(json.loads(line).get("rows", [])) for line in lines) == 90


def test_a_thread_that_fetches_ahead_lets_no_step_wait(record, write):
    rows = [row for entry in record(write(FETCHED_AHEAD)).read() for row in entry.get("rows", [])]
    assert len(rows) == 29
    assert not any(input_ns for _, _, input_ns, _ in rows)


def test_a_file_that_a_script_opens_after_it_closed_all_gets_no_line_of_ours(
    record, write, tmp_path
):
    assert count_steps(record(write(CLOSES_FILES))) == 30
    assert (tmp_path / "own").read_bytes() == b""


def test_the_process_that_steps_first_is_the_scripts(run, write):
    """A program that it starts and waits for could write all of its steps first."""
    (segment,) = run("run", script=(write(STARTS_ANOTHER),)).session.segments
    assert len(segment.steps["t_s"]) == 30


def test_of_two_recordings_that_are_read_at_once_the_first_steps_are_the_scripts(tmp_path):
    for pid, start_ns in ((10000, 8), (9999, 1), (1234, 5)):
        lines = [{"pid": pid, "rank": "0"}, {"rows": [[start_ns, start_ns + 1, 0, None]]}]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / f"{pid}.jsonl").write_text(text)
    reader = Reader(tmp_path)
    assert [entry["pid"] for entry in reader.read() if "pid" in entry] == [9999]
    assert reader.left_out == 2


def test_a_hidden_sitecustomize_still_runs(record, write, monkeypatch):
    folder = write("", "train.py").parent / "site"
    folder.mkdir()
    folder.joinpath("sitecustomize.py").write_text("import builtins; builtins.NOTICED = 1")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert count_steps(record(write(f"assert NOTICED\n{LOOP}"))) == 30


@pytest.mark.parametrize(
    "before",
    [LOOKS_FOR_TORCH, pytest.param(FAILS_TO_IMPORT_TORCH, marks=pytest.mark.slow)],
)
def test_torch_is_recorded_by_the_import_that_succeeds(record, write, before):
    """Packages such as ``transformers`` look for torch before they, or the script, import it."""
    assert count_steps(record(write(before + OPTIMIZER_LOOP))) == 29
