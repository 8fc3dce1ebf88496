"""The texts of an axis's ticks."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QFontMetricsF

from workbench.charts.axis import Axis
from workbench.charts.canvas import Canvas, canvas_view
from workbench.charts.style import screen_style
from workbench.theming.theme import DARK


@pytest.mark.parametrize("font_px", [12, 24])
def test_texts_of_ticks_never_overlap(qapp, font_px):
    style = screen_style(DARK, font_px)
    axis, painter = Axis("bottom", style), MagicMock()
    texts = ["1024", "2048", "4096", "8192", "16384", "32768"]
    axis._draw_texts(painter, QRectF(0, 0, 200, 100), [30.0 * at for at in range(6)], texts)
    metrics, end = QFontMetricsF(style.font()), float("-inf")
    drawn = [(call.args[0].x(), call.args[1]) for call in painter.drawText.call_args_list]
    assert drawn[0][1] == "1024" and len(drawn) > 1
    for left, text in drawn:
        assert left > end
        end = left + metrics.horizontalAdvance(text)


@pytest.mark.parametrize("pixels", [[2.0, 100.0, 198.0], [0.0, 60.0, 200.0]])
def test_the_first_and_the_last_text_of_an_axis_are_not_clipped(qapp, pixels):
    style = screen_style(DARK, 13)
    axis, painter = Axis("bottom", style), MagicMock()
    texts = ["0:00", "1:00", "2:00"]
    axis._draw_texts(painter, QRectF(0, 0, 200, 100), pixels, texts)
    metrics = QFontMetricsF(style.font())
    drawn = [(call.args[0].x(), call.args[1]) for call in painter.drawText.call_args_list]
    assert [text for _, text in drawn] == texts
    for left, text in drawn:
        assert left >= 0 and left + metrics.horizontalAdvance(text) <= 200


def test_the_texts_at_both_ends_of_a_vertical_axis_lie_inside_its_bounds(qapp):
    """Outside of them Qt does not erase: a rest of an old text stayed above the plot."""
    style = screen_style(DARK, 13)
    view, canvas, painter = canvas_view(), Canvas(style), MagicMock()
    view.setCentralItem(canvas)
    canvas.setGeometry(QRectF(0, 0, 400, 200))
    axis = canvas.axis("left")
    area = axis.mapRectFromItem(canvas.vb, canvas.vb.rect())
    axis._draw_texts(painter, area, [area.top(), area.bottom()], ["60", "0"])
    metrics = QFontMetricsF(style.font())
    baselines = [call.args[0].y() for call in painter.drawText.call_args_list]
    assert len(baselines) >= 2
    assert baselines[0] - metrics.ascent() >= axis.boundingRect().top()
    assert baselines[1] + metrics.descent() <= axis.boundingRect().bottom()
