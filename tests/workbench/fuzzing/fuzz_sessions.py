"""Fuzz session files by hand: ``python tests/workbench/fuzzing/fuzz_sessions.py --files 10000``.

Each file is a valid session with some changes (``session_mutations``), with or without a checksum.
It goes through opening, ``info`` in all forms, ``compare`` and all tables. One in ``--drawn`` also
goes through plots and a report, and with ``--windows`` each through a window with every panel. Each
file has a process of its own, so that a crash is counted and a hang ends. Whatever is neither an
answer nor one sentence is printed with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "samples"), str(HERE.parents[2])]

# ruff: noqa: E402 - after the folders that they are in
import h5py
import profile_samples
import psutil
from complete_session import everything
from fuzzed_window import HUNG_S, SLOWEST_S, WindowProcess, used_s
from session_mutations import column_cases, damage, fill_columns, mutate
from synthetic import bench_session, cpu_session, gpu_session, sweep_study

from sessions.errors import SessionError
from sessions.exports import exportable
from sessions.model import Order, Session
from sessions.storage import _check, _write, hdf5, seal
from sessions.storage._lazy import Source
from workbench.cli import main

LARGEST_BYTES = 6 << 30  # of memory for one file, beyond what the parent has mapped
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def bases() -> list[bytes]:
    """Return the files that are changed: together they have every part of a session."""
    swept = gpu_session(steps=40, segments=2)
    swept.studies = [sweep_study(two=True), sweep_study()]
    full = everything()
    full.orders = [Order(start_s=0.0, command={"type": "start", "steps": 3})]
    full.segments, full.titles = full.segments[:6], {}
    traced = profile_samples.session()
    traced.studies = [profile_samples.rich_study(blocks=1)]
    sessions = [full, swept, cpu_session(30), bench_session(), traced]
    sessions.append(profile_samples.session(2))
    return [bytes(_write.image(session)) for session in sessions]


def make(path: Path, number: int, contents: list[bytes]) -> str:
    """Write the file of this number; return what was done to it."""
    rng = random.Random(number)
    path.write_bytes(rng.choice(contents))
    done: list[str] = []
    if rng.random() < 0.8:
        with h5py.File(path, "r+") as file:
            done = mutate(file, rng, rng.choice([1, 1, 1, 2, 4, 8]))
            if rng.random() < 0.3:
                file.attrs.pop("sealed", None)
    else:
        content = bytearray(path.read_bytes())
        done = [damage(content, rng) for _ in range(rng.choice([1, 1, 3]))]
        path.write_bytes(content)
    content = bytearray(path.read_bytes())
    if rng.random() < 0.6:
        seal.stamp(memoryview(content))
        done.append("sealed")
    else:
        content[: seal.SIZE] = bytes(seal.SIZE)
    path.write_bytes(content)
    return "; ".join(done)


def make_case(path: Path, case: tuple[int, str, float], contents: list[bytes]) -> str:
    """Write a sealed file in which whole columns hold one extreme number."""
    base, pattern, value = case
    return change(path, contents[base], lambda file: fill_columns(file, pattern, value))


def change(path: Path, content: bytes, mutation: Callable[[h5py.File], str]) -> str:
    """Write a sealed file that one mutation has changed; return what it did."""
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        done = mutation(file)
    changed = bytearray(path.read_bytes())
    seal.stamp(memoryview(changed))
    path.write_bytes(changed)
    return done


def use(path: Path, other: Path, drawn: bool, checked: Path) -> str:
    """Open the file and do all that can be done with it; return "used" or "refused".

    What the check lets pass is saved at ``checked``. Raises whatever is wrong: an exception, or
    ``AssertionError`` for an answer that is none.
    """
    try:
        session = hdf5.load(path)
    except SessionError as error:
        require_sentence(str(error))
        return "refused"
    tables = [table for tables in exportable(session).values() for table in tables]
    for table in tables:
        require_plain(table.to_markdown())
        table.to_csv()
        table.to_data()
    for words in (["info"], ["info", "--json"], ["info", "--command"], ["info", "--python"]):
        call([words[0], str(path), *words[1:]])
    call(["compare", str(other), str(path)])
    call(["export", str(path), "--list"])
    if drawn:
        draw(session, path)
    hdf5.save(session, checked)
    return "used"


def draw(session: Session, path: Path) -> None:
    """Make every plot with its table, and a report of all sections."""
    from workbench import plot_export
    from workbench.commands._command import runs_of
    from workbench.plots import PLOTS
    from workbench.report import _page

    plot_export.ensure_application()
    runs = runs_of([session], [session.title])
    for plot in PLOTS.values():
        if plot.can_show(runs) is None:
            plot.table(runs)
            plot_export.plot_svg(plot, runs)
    page = _page.page(runs)
    assert "<script" not in page and "file:" not in page.replace("&#39;file:", "")
    call(["report", str(path), "-o", str(path.with_suffix(".html"))])


def call(words: list[str]) -> None:
    """Run one command; its answer must be plain text and a refusal one sentence."""
    answer, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(errors):
        code = main(words)
    assert code in (0, 1, 2), f"{words}: exit code {code}"
    require_plain(answer.getvalue())
    if code:
        require_sentence(errors.getvalue().strip())
    else:
        assert "Traceback" not in errors.getvalue() and "Warning" not in errors.getvalue(), (
            errors.getvalue()
        )


def require_plain(text: str) -> None:
    """Assert that no character of a text controls a terminal or the direction of writing."""
    wrong = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cs")} - {
        "\n",
        "\t",
    }
    wrong |= {letter for letter in text if unicodedata.bidirectional(letter) in _DIRECTIONS}
    assert not wrong, f"{wrong} in an answer"


def require_sentence(text: str) -> None:
    """Assert that a refusal is one line without a traceback."""
    assert text and "\n" not in text and "Traceback" not in text, text[:500]
    assert len(text) < 2000, text[:500]
    require_plain(text)


def forked_copy(source: Source, sealed: bool = False) -> Source:
    """Check as ``_check.checked_copy`` does, in a fork: starting Python takes most of its time."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - it is handed on
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        with contextlib.suppress(BaseException):
            mapped = psutil.Process().memory_info().vms
            _check.limit_resources(source.size, _check._limit_s(source.size), mapped)
            why = _check.refusal(
                Source(Path("it"), os.dup(source.descriptor)), sealed, copy.fileno()
            )
            os.write(writer, why.encode(errors="replace")[:4000])
            os._exit(4 if why else 0)
        os._exit(9)
    os.close(writer)
    why = b"".join(iter(lambda: os.read(reader, 4096), b"")).decode(errors="replace")
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise SessionError(f"it is damaged: the HDF5 library crashed on it ({os.WTERMSIG(status)})")
    if os.WEXITSTATUS(status) == 9:
        raise AssertionError("the check raised something else")
    if why:
        raise SessionError(why)
    checked = Source(source.path, os.dup(copy.fileno()))
    checked.trusted = True
    copy.close()
    return checked


def checked_path(folder: Path, number: int) -> Path:
    """Return where the checked session of this number is saved; the window opens it unchecked."""
    return folder / f"{number}.checked.h5"


def attempt(
    number: int, make_file: Callable[[Path, int], str], other: Path, drawn: bool, folder: Path
) -> str:
    """Make and use one file in a process of its own; return how it ended."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        os.setsid()
        done = ""
        try:
            limit = psutil.Process().memory_info().vms + LARGEST_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            path = folder / f"{number}.h5"
            done = make_file(path, number)
            ended = use(path, other, drawn, checked_path(folder, number))
        except BaseException:  # noqa: BLE001 - whatever it was is the finding
            ended = f"{number}: {done}\n{traceback.format_exc()[-2500:]}"
        os.write(writer, ended.encode(errors="replace"))
        os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    ended, began = b"", time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            ended += os.read(reader, 65536)
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            break
        if used_s(child) > SLOWEST_S or time.monotonic() - began > HUNG_S:
            os.killpg(child, 9)
            os.waitpid(child, 0)
            os.close(reader)
            return f"{number}: no end within {SLOWEST_S} s of processor time"
        time.sleep(0.01)
    with contextlib.suppress(BlockingIOError):
        ended += os.read(reader, 65536)
    os.close(reader)
    if os.WIFSIGNALED(status):
        return f"{number}: signal {os.WTERMSIG(status)}"
    return ended.decode(errors="replace") or f"{number}: no answer"


def fuzz(
    first: int, files: int, drawn: int, folder: Path, windows: bool = False, columns: bool = False
) -> tuple[Counter[str], list[str]]:
    """Use so many files from seed ``first`` on; return counts, and what was wrong.

    With ``columns`` the numbers count the cases of ``column_cases`` instead.
    """
    window = WindowProcess(folder)
    contents = bases()
    cases = column_cases(contents, folder / "columns.h5") if columns else []

    def make_file(path: Path, number: int) -> str:
        return make_case(path, cases[number], contents) if columns else make(path, number, contents)

    other = folder / "other.h5"
    hdf5.save(gpu_session(steps=40), other)
    hdf5.checked_copy = forked_copy
    counts: Counter[str] = Counter()
    wrong = []
    for number in range(first, min(first + files, len(cases) if columns else first + files)):
        ended = attempt(number, make_file, other, bool(drawn) and number % drawn == 0, folder)
        if windows and ended == "used":
            counts["windows"] += 1
            if complaints := window.open(checked_path(folder, number)):
                ended = f"{number}: in the window: {complaints}"
        counts[ended if ended in ("used", "refused") else "wrong"] += 1
        if ended not in ("used", "refused"):
            wrong.append(ended)
            sys.stdout.write(f"{ended}\n")
            sys.stdout.flush()
        for leftover in folder.glob(f"{number}.*"):
            leftover.unlink()
    window.close()
    return counts, wrong


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--drawn", type=int, default=20, help="0: no file is drawn")
    parser.add_argument(
        "--columns", action="store_true", help="fill each column with each extreme number instead"
    )
    parser.add_argument("--windows", action="store_true", help="open each file in a window too")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        counts, wrong = fuzz(
            options.first,
            options.files,
            options.drawn,
            Path(folder),
            options.windows,
            options.columns,
        )
    sys.stdout.write(f"{dict(counts)} in {time.monotonic() - began:.0f} s\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(_main())
