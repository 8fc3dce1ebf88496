"""Charts as files: PNG, SVG and PDF painted from one scene, CSV of the data behind it.

Works without a window and without a display: without an application, one is created on Qt's
offscreen platform.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QMarginsF, QRect, QRectF, QSize, QSizeF
from PySide6.QtGui import (
    QGuiApplication,
    QImage,
    QPageSize,
    QPaintDevice,
    QPainter,
    QPdfWriter,
    QPixmap,
)
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QApplication

from sessions.csv_text import csv_bytes as csv_bytes
from sessions.plain_text import plain
from sessions.storage import atomic_write
from sessions.tables import Table
from workbench.charts.canvas import Canvas, canvas_view
from workbench.charts.style import paper_style, shade
from workbench.plots import PLOTS, Plot, Run
from workbench.theming import fonts
from workbench.theming.svg import compact
from workbench.theming.theme import PRINT, Theme

SUFFIXES = (".png", ".svg", ".pdf", ".csv")
PICTURES = (".png", ".pdf")  # their text needs a font of this machine
TABLE_SUFFIXES = (".csv", ".md")
SIZE = (900, 520)  # logical pixels, 96 to the inch
_SCALE = 2  # pixels of a PNG per logical pixel
_DPI = 96
_PDF_DPI = 1200
# Qt declares image procedures on every page; a chart has no image, and a reader may rely on that.
_PROCEDURES = b"/ProcSet [/PDF /Text /ImageB /ImageC]"

_application: QApplication | None = None


class ExportError(Exception):
    """A chart cannot be written as requested; ``str()`` is the reason in one sentence."""


class Unwritable(ExportError):  # noqa: N818 - what its file is
    """The request is valid, but its file cannot be written."""


def ensure_application() -> QApplication:
    """Return the running application, or a new one on the offscreen platform."""
    global _application
    running = QApplication.instance()
    if isinstance(running, QApplication):
        return running
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    _application = QApplication([])
    return _application


def export_plot(
    name: str,
    runs: Sequence[Run],
    path: str | os.PathLike[str],
    size: tuple[int, int] = SIZE,
    theme: Theme = PRINT,
    options: Mapping[str, str] | None = None,
) -> Path:
    """Write a plot of ``runs`` to ``path``, in the format that its suffix names.

    ``size`` is in logical pixels (96 to the inch; a PNG has two pixels for each). ``options`` are
    the plot's own. Returns the path. Raises ``ExportError``.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ExportError(
            f"Cannot export to {target.name}: unknown suffix {target.suffix!r}, expected one of "
            f"{', '.join(SUFFIXES)}."
        )
    options = dict(options or {})
    plot = find_plot(name, runs, options)
    ensure_application()
    reason = plot.can_show(runs)
    if reason is not None:
        raise ExportError(f"Cannot export {plot.name}: {reason}")
    if suffix in PICTURES and not fonts.exist():
        raise ExportError(f"Cannot export {plot.name} to {suffix}: {fonts.NO_FONT}, or use SVG.")
    if suffix == ".csv":
        content = csv_bytes(plot.table(runs, **options))
    else:
        content = _PAINTERS[suffix](plot, runs, size, theme, options)
    write_atomically(target, content)
    return target


def find_plot(name: str, runs: Sequence[Run], options: Mapping[str, str] | None = None) -> Plot:
    """Return the plot of that name, its options checked for these runs; raises ``ExportError``."""
    if name not in PLOTS:
        raise ExportError(f"There is no plot {name!r}; expected one of {', '.join(PLOTS)}.")
    plot = PLOTS[name]
    offered = plot.choices(runs)
    for option, choice in (options or {}).items():
        if option not in offered:
            known = ", ".join(offered) or "none"
            raise ExportError(f"The plot {name} has no option {option!r}; it has: {known}.")
        if choice not in offered[option]:
            raise ExportError(
                f"The option {option} of the plot {name} cannot be {choice!r}; expected one of "
                f"{', '.join(offered[option]) or 'nothing, because it has no choices here'}."
            )
    return plot


def plot_image(
    plot: Plot,
    runs: Sequence[Run],
    size: tuple[int, int] = SIZE,
    theme: Theme = PRINT,
    options: Mapping[str, str] | None = None,
) -> QImage:
    """Return the plot as an image at twice the logical size."""
    image = QImage(QSize(*size) * _SCALE, QImage.Format.Format_ARGB32_Premultiplied)
    image.setDotsPerMeterX(round(_DPI * _SCALE / 0.0254))
    image.setDotsPerMeterY(round(_DPI * _SCALE / 0.0254))
    with _painting(image) as painter:
        _paint(painter, QRectF(image.rect()), plot, runs, size, theme, options or {})
    return image


def copy_image(
    plot: Plot,
    runs: Sequence[Run],
    size: tuple[int, int] = SIZE,
    theme: Theme = PRINT,
    options: Mapping[str, str] | None = None,
) -> None:
    """Put the plot on the clipboard as an image."""
    QGuiApplication.clipboard().setImage(plot_image(plot, runs, size, theme, options))


def copy_pixmap(pixmap: QPixmap) -> None:
    """Put a picture of something on the screen on the clipboard."""
    QGuiApplication.clipboard().setPixmap(pixmap)


def copy_table(table: Table, suffix: str) -> None:
    """Put a table on the clipboard as ``.csv`` or ``.md``."""
    QGuiApplication.clipboard().setText(table_text(table, suffix))


def table_text(table: Table, suffix: str) -> str:
    """Return a table as ``.csv`` or ``.md``; raises ``ExportError`` for anything else."""
    if suffix not in TABLE_SUFFIXES:
        raise ExportError(
            f"Cannot export the table {table.title!r}: unknown suffix {suffix!r}, expected one of "
            f"{', '.join(TABLE_SUFFIXES)}."
        )
    return table.to_csv() if suffix == ".csv" else table.to_markdown()


@contextmanager
def _painting(device: QPaintDevice) -> Iterator[QPainter]:
    """Yield a painter that ends before its device, after errors too: else Qt ends the process."""
    painter = QPainter(device)
    try:
        yield painter
    finally:
        painter.end()


def _paint(
    painter: QPainter,
    target: QRectF,
    plot: Plot,
    runs: Sequence[Run],
    size: tuple[int, int],
    theme: Theme,
    options: Mapping[str, str],
    least_px: float = 0.0,
) -> None:
    """Draw the plot and paint its scene into ``target``."""
    style = dataclasses.replace(paper_style(theme), least_px=least_px)
    view = canvas_view()
    canvas = Canvas(style)
    view.setCentralItem(canvas)
    source = QRectF(0, 0, *size)
    canvas.setGeometry(source)
    if len(runs) == 1:
        canvas.header.subtitle = runs[0].titled(runs[0].title)
    plot.paint(canvas, runs, style, **options)
    canvas.layout.activate()
    canvas.refresh()
    painter.fillRect(target, shade(theme.surface))
    view.scene().prepareForPaint()
    view.scene().render(painter, target, source)
    error = canvas.error
    canvas.clear_layers()
    view.close()
    if error is not None:  # the picture is only half painted
        raise error


def _png(
    plot: Plot, runs: Sequence[Run], size: tuple[int, int], theme: Theme, options: Mapping[str, str]
) -> bytes:
    content, buffer = _buffer()
    plot_image(plot, runs, size, theme, options).save(buffer, "PNG")  # type: ignore[call-overload]
    return bytes(content.data())


def plot_svg(
    plot: Plot,
    runs: Sequence[Run],
    size: tuple[int, int] = SIZE,
    theme: Theme = PRINT,
    options: Mapping[str, str] | None = None,
    least_px: float = 0.0,
) -> bytes:
    """Return the plot as a vector drawing, its text as text; ``least_px`` as a style has it."""
    content, buffer = _buffer()
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    generator.setResolution(_DPI)
    generator.setSize(QSize(*size))
    generator.setViewBox(QRect(0, 0, *size))
    generator.setTitle(plot.title)
    generator.setDescription(", ".join(run.title for run in runs))
    with _painting(generator) as painter:
        _paint(painter, QRectF(0, 0, *size), plot, runs, size, theme, options or {}, least_px)
    # XML may hold no control character, not even as a reference.
    drawing = plain(bytes(content.data()).decode(errors="replace"))
    return compact(drawing.encode())


def _pdf(
    plot: Plot, runs: Sequence[Run], size: tuple[int, int], theme: Theme, options: Mapping[str, str]
) -> bytes:
    content, buffer = _buffer()
    writer = QPdfWriter(buffer)
    points = QSizeF(*size) * 72 / _DPI
    writer.setPageSize(
        QPageSize(points, QPageSize.Unit.Point, "", QPageSize.SizeMatchPolicy.ExactMatch)
    )
    writer.setPageMargins(QMarginsF(0, 0, 0, 0))
    writer.setResolution(_PDF_DPI)
    writer.setTitle(plot.title)
    writer.setCreator("GPU optimization workbench")
    target = QRectF(0, 0, size[0] * _PDF_DPI / _DPI, size[1] * _PDF_DPI / _DPI)
    with _painting(writer) as painter:
        _paint(painter, target, plot, runs, size, theme, options)
    return bytes(content.data()).replace(
        _PROCEDURES, b"/ProcSet [/PDF /Text]".ljust(len(_PROCEDURES))
    )


_PAINTERS: dict[str, Callable[..., bytes]] = {".png": _png, ".svg": plot_svg, ".pdf": _pdf}


def _buffer() -> tuple[QByteArray, QBuffer]:
    content = QByteArray()
    buffer = QBuffer(content)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    return content, buffer


def write_atomically(target: Path, content: bytes) -> None:
    """Write and rename, so that no file is ever half overwritten; raises ``Unwritable``."""
    try:
        atomic_write.write(target, content)
    except (OSError, ValueError, RuntimeError) as error:
        sentence = f"Cannot write {target}: {atomic_write.reason(error)}; choose another place."
        raise Unwritable(sentence) from error
