"""In a small plot no name and no number is cut off or laid over another."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QBrush, QFontMetricsF, QPainter, QPen, QPixmap

from workbench.charts.header import Header
from workbench.charts.layers.frame import Frame
from workbench.charts.layers.layer import Entry
from workbench.charts.style import Style
from workbench.charts.units import MILLISECONDS
from workbench.plots._distributions import Distribution
from workbench.plots.box import Box
from workbench.plots.sweep_map import digits_in
from workbench.theming.theme import DARK


def test_the_names_in_a_legend_end_where_the_plot_does(qapp):
    header = Header(Style(DARK))
    header.readings, header.spare_px = True, 30.0
    header.setGeometry(QRectF(0, 0, 330, 20))
    name = "batch 1, Gradient checkpointing: Every block, AdamW: Fused: exponent 0 (−2 to 3)"
    header.set_entries([Entry(name, "line", QPen(), QBrush(), lambda _: "21 ms", "88 ms")])
    ((x, _),) = header._corners
    width = header._entry_width(header._entries[0], QFontMetricsF(header._style.font()))
    assert x + width <= 330


def test_the_value_of_the_topmost_box_is_not_cut_off(qapp):
    style = Style(DARK)
    shown = Distribution("arm", 0, np.linspace(1.0, 9.0, 200))
    pixmap = QPixmap(200, 60)
    painter = _RecordingPainter(pixmap)
    Box(shown, 0.0, style).draw(painter, Frame((0.8, 9.2), (-1.4, 0.6), 200.0, 60.0))
    painter.end()
    (baseline,) = painter.baselines
    assert baseline - QFontMetricsF(style.font()).ascent() >= -1.0


@pytest.mark.parametrize(("height", "texts"), [(100.0, 1), (400.0, 5)])
def test_the_value_of_a_box_lies_on_no_other_box(qapp, height, texts):
    pixmap = QPixmap(140, int(height))
    painter = _RecordingPainter(pixmap)
    for row in range(5):
        shown = Distribution(f"arm {row}", row, np.linspace(1.0, 9.0, 200))
        frame = Frame((0.8, 9.2), (-4.6, 0.6), 140.0, height)
        Box(shown, -float(row), Style(DARK)).draw(painter, frame)
    painter.end()
    assert len(painter.texts) == texts


class _RecordingPainter(QPainter):
    """Painter that records which texts it draws, at which heights, and where they end."""

    def __init__(self, on: QPixmap) -> None:
        super().__init__(on)
        self.baselines: list[float] = []
        self.texts: list[str] = []
        self.ends: list[float] = []

    def drawText(self, position, text) -> None:
        self.baselines.append(position.y())
        self.texts.append(text)
        self.ends.append(position.x() + QFontMetricsF(self.font()).horizontalAdvance(text))
        super().drawText(position, text)


@pytest.mark.parametrize("text", ["1.62 ms", "1.6 ms", "2 ms"])
def test_numbers_of_a_narrow_map_lose_digits_and_not_their_units(qapp, text):
    metrics = QFontMetricsF(Style(DARK).font())
    digits = digits_in(metrics.horizontalAdvance(text), metrics, MILLISECONDS, [1.62, 1.57])
    assert MILLISECONDS.text(1.62, digits) == text


@pytest.mark.parametrize("width", [60.0, 150.0, 400.0])
def test_no_text_of_a_header_lies_under_the_button_in_its_corner(qapp, width):
    header = Header(Style(DARK))
    header.title, header.subtitle, header.spare_px = "Validation loss", "moe train", 30.0
    header.setGeometry(QRectF(0, 0, width, 40))
    header.set_entries([Entry(f"arm {at}", "line", QPen(), QBrush()) for at in range(9)])
    pixmap = QPixmap(int(width), 40)
    painter = _RecordingPainter(pixmap)
    header.paint(painter, None)
    painter.end()
    assert painter.texts[0][:1] == "V"
    drawn = zip(painter.texts, painter.ends, painter.baselines, strict=True)
    first_row = [end for text, end, baseline in drawn if text and baseline < 16]
    assert first_row and max(first_row) <= width - 30
