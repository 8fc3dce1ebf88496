"""Sessions as runs of experiment trackers: TensorBoard, Trackio and Weights & Biases.

Each segment becomes a run in a folder; nothing is sent anywhere. The trackers' own libraries write
their formats.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sessions.model import Segment, Session
from sessions.verdicts.statistics import steady_ms, step_ms, summarize

PROJECT = "workbench"
_COLUMNS = {"allocated": "memory/allocated_bytes", "peak": "memory/peak_bytes"}


class MissingLibrary(Exception):  # noqa: N818 - says what to install
    """The library that writes a format is not installed: one sentence."""


def export(session: Session, title: str, form: str, folder: Path) -> int:
    """Write every segment in the format ``form``, and return how many there are.

    Raises ``MissingLibrary``, and ``OSError`` for a folder that cannot be written.
    """
    writer = FORMATS[form]
    with contextlib.redirect_stdout(sys.stderr):  # the libraries print, and so does the command
        for segment in session.segments:
            writer(session, segment, f"{title}-{segment.index}", folder)
    return len(session.segments)


def _scalars(segment: Segment) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield the number, the time and the measurements of each step."""
    times, steps = step_ms(segment), segment.steps
    for number, (start_s, ms) in enumerate(zip(steps["t_s"], times, strict=True)):
        values = {"step_time_ms": float(ms)}
        values |= {title: float(steps[name][number]) for name, title in _COLUMNS.items()}
        values["phase"] = float(steps["phase"][number])
        yield number, float(start_s), {k: v for k, v in values.items() if math.isfinite(v)}


def _summary(segment: Segment) -> dict[str, Any]:
    """Return the configuration, and the median of the steady steps."""
    median = summarize(steady_ms(segment)).median
    return {**segment.configuration.flat(), "steady_median_ms": median}


def _tensorboard(session: Session, segment: Segment, name: str, folder: Path) -> None:
    protocol = _library("tensorboard", "tensorboard.compat.proto.event_pb2")
    summaries = _library("tensorboard", "tensorboard.compat.proto.summary_pb2")
    files = _library("tensorboard", "tensorboard.summary.writer.event_file_writer")
    folder.mkdir(parents=True, exist_ok=True)
    # A title that is a path (of files that share a name) would lead out of the folder.
    writer = files.EventFileWriter(str(folder / name.replace("/", "_")))
    for number, start_s, values in _scalars(segment):
        rows = [summaries.Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
        summary = summaries.Summary(value=rows)
        moment = session.created + start_s
        writer.add_event(protocol.Event(wall_time=moment, step=number, summary=summary))
    writer.close()


def _trackio(session: Session, segment: Segment, name: str, folder: Path) -> None:
    os.environ["TRACKIO_DIR"] = str(folder)  # read when the library is imported
    trackio = _library("trackio", "trackio")
    folder.mkdir(parents=True, exist_ok=True)
    trackio.init(project=PROJECT, name=name, config=_summary(segment))
    for number, _, values in _scalars(segment):
        trackio.log(values, step=number)
    trackio.finish()


def _wandb(session: Session, segment: Segment, name: str, folder: Path) -> None:
    wandb = _library("wandb", "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=PROJECT, name=name, config=_summary(segment), dir=str(folder), mode="offline"
    )
    for number, _, values in _scalars(segment):
        run.log(values, step=number)
    run.finish()


def _library(package: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibrary(
            f"{package} is not installed ({error}); run pip install {package}"
        ) from None


FORMATS: dict[str, Callable[[Session, Segment, str, Path], None]] = {
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}
