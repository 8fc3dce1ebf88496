"""Every plot, over generated sessions, in every theme: it draws, or says why it cannot."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter
from PySide6.QtWidgets import QGraphicsScene
from synthetic import (
    GIB,
    cpu_session,
    empty_session,
    gpu_session,
    long_session,
    nan_session,
)

from sessions.columns import Columns
from sessions.energy import energy_table
from sessions.model import (
    ABSENT,
    SAMPLING,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    Configuration,
    Event,
    Phase,
    PhaseSpan,
    Segment,
    Session,
)
from workbench import plot_export
from workbench.charts.canvas import Canvas, canvas_view
from workbench.charts.layers.curves import Line
from workbench.charts.layers.markers import marks
from workbench.charts.layers.phases import Phases
from workbench.charts.style import paper_style, screen_style
from workbench.plots import PLOTS, Plot, Run
from workbench.plots._telemetry import devices
from workbench.theming.theme import DARK, LIGHT, PRINT

STYLES = {
    "dark": screen_style(DARK),
    "light": screen_style(LIGHT),
    "print": paper_style(),
    "dark on paper": paper_style(DARK),
}
LONG = "a label that goes on and on, as one that lists nine toggles would, " * 4
NAMES = ("step_time", "throughput", "memory", "utilization", "power", "ecdf", "box",
         "aligned_timeline", "model_metrics", "model_metrics_map")  # fmt: skip


def painted(plot: Plot, runs, style, size=(640, 360), **options) -> tuple[QImage, Canvas]:
    """Return the plot as an image, and its canvas, which keeps the view alive."""
    import pyqtgraph as pg

    view = pg.GraphicsView(background=style.theme.surface)
    canvas = Canvas(style)
    canvas.view_kept = view
    view.setCentralItem(canvas)
    canvas.setGeometry(QRectF(0, 0, *size))
    plot.paint(canvas, runs, style, **options)
    canvas.layout.activate()
    canvas.refresh()
    image = QImage(*size, QImage.Format.Format_RGB32)
    image.fill(style.theme.surface)
    painter = QPainter(image)
    view.scene().prepareForPaint()
    view.scene().render(painter, QRectF(image.rect()), QRectF(0, 0, *size))
    painter.end()
    return image, canvas


def ink(image: QImage, background: str) -> float:
    """Share of pixels that are not the background's."""
    pixels = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), -1)
    return float((pixels & 0xFFFFFF != int(background[1:], 16)).mean())


def test_the_folder_holds_the_plots_that_are_wanted():
    assert set(NAMES) <= set(PLOTS)
    for name, plot in PLOTS.items():
        assert plot.name == name
        assert plot.title and plot.help.strip().endswith(".")
        assert plot.axis in ("time", "value")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", NAMES)
def test_a_plot_of_a_gpu_session_leaves_ink_in_its_series_colours(name, style):
    runs = [Run(gpu_session(4, 200))]
    theme = STYLES[style].theme
    assert PLOTS[name].can_show(runs) is None
    image, _ = painted(PLOTS[name], runs, STYLES[style])
    assert 0.01 < ink(image, theme.surface) < 0.9
    pixels = np.frombuffer(image.constBits(), np.uint32) & 0xFFFFFF
    wanted = int(theme.series[0][1:], 16)
    channels = [(pixels >> shift & 255).astype(int) for shift in (16, 8, 0)]
    distance = sum(
        abs(channel - (wanted >> shift & 255))
        for channel, shift in zip(channels, (16, 8, 0), strict=True)
    )
    assert (distance < 30).sum() > 20


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_plot_draws(name):
    plot = PLOTS[name]
    runs = [Run(gpu_session(2, 60))]
    for option, choices in plot.choices(runs).items():
        for choice in choices:
            image, _ = painted(plot, runs, STYLES["light"], **{option: choice})
            assert ink(image, LIGHT.surface) > 0.005


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [empty_session, nan_session])
def test_a_session_without_data_gets_a_sentence_that_says_why(name, make):
    reason = PLOTS[name].can_show([Run(make())])
    assert reason is not None
    assert reason[0].isupper() and reason.endswith(".") and len(reason) < 120


def test_a_cpu_session_shows_what_it_has_and_says_what_it_lacks():
    runs = [Run(cpu_session())]
    for name in ("step_time", "throughput", "memory", "utilization", "ecdf", "box"):
        assert PLOTS[name].can_show(runs) is None
    assert "does not report it" in PLOTS["power"].can_show(runs)
    _, canvas = painted(PLOTS["memory"], runs, STYLES["dark"])
    assert [entry.name for entry in canvas.entries()][:2] == ["peak", "resident set"]
    _, canvas = painted(PLOTS["utilization"], runs, STYLES["dark"])
    assert canvas.entries()[0].name == "CPU busy"


def test_columns_of_telemetry_name_their_units():
    runs = [Run(gpu_session(1, 50))]
    power = PLOTS["power"].table(runs, right="temperature")
    assert list(power) == ["session", "device", "t_s", "power_w", "temperature_celsius"]
    assert "sm_clock_mhz" in PLOTS["power"].table(runs)


def several_gpus(count: int) -> Session:
    """Return a session of so many GPUs, each 10 % busier and with 1 GiB more than the last."""
    session = gpu_session(1, 50)
    first = session.telemetry["gpu0"]
    for number in range(1, count):
        own = {name: np.array(values) for name, values in first.items()}
        own["busy"][:], own["memory_used"][:] = 10.0 * number, (number + 1.0) * GIB
        session.telemetry[f"gpu{number}"] = own
    return session


def test_every_gpu_of_the_ranks_has_lines_of_its_own_and_all_columns_in_the_table():
    runs = [Run(several_gpus(3))]
    _, canvas = painted(PLOTS["utilization"], runs, STYLES["light"])
    names = [entry.name for entry in canvas.entries()]
    for number in range(3):
        assert {f"GPU{number} busy", f"GPU{number} SM active"} <= set(names)
    assert "GPU0 tensor cores" in names and "GPU1 tensor cores" not in names
    table = PLOTS["utilization"].table(runs)
    for number in (1, 2):
        own = table["device"] == f"gpu{number}"
        assert set(table["busy_percent"][own]) == {10.0 * number}
        assert set(table["memory_used_bytes"][own]) == {(number + 1.0) * GIB}
        assert np.isfinite(table["tensor_active_percent"][own]).any()
    _, canvas = painted(PLOTS["memory"], runs, STYLES["light"])
    names = [entry.name for entry in canvas.entries()]
    assert [name for name in names if "GPU" in name] == [f"GPU{n} in use" for n in range(3)]
    _, canvas = painted(PLOTS["memory"], [Run(several_gpus(1))], STYLES["light"])
    assert not [entry.name for entry in canvas.entries() if "in use" in entry.name]


def test_ten_gpus_are_in_the_order_of_their_numbers_and_a_new_one_is_drawn_at_once():
    session = several_gpus(11)
    session.telemetry["cpu"] = session.telemetry.pop("gpu3")
    assert devices(Run(session))[-3:] == ["gpu9", "gpu10", "cpu"]
    for name in ("utilization", "memory", "power"):
        plot, run = PLOTS[name], Run(several_gpus(1))
        before = plot.key([run])
        run.session.telemetry["gpu1"] = run.session.telemetry["gpu0"]
        assert plot.key([run]) != before


def test_ranks_that_share_a_cpu_have_a_line_of_memory_each_and_one_of_the_host():
    session = cpu_session()
    session.telemetry["cpu1"] = {
        name: np.array(values) for name, values in session.telemetry["cpu"].items()
    }
    _, canvas = painted(PLOTS["utilization"], [Run(session)], STYLES["light"])
    assert [entry.name for entry in canvas.entries()].count("CPU busy") == 1
    _, canvas = painted(PLOTS["memory"], [Run(session)], STYLES["light"])
    assert "CPU1 resident set" in [entry.name for entry in canvas.entries()]


@pytest.mark.parametrize("theme", STYLES)
def test_utilization_says_how_often_each_measure_is_sampled_or_why_it_is_absent(theme):
    session = gpu_session(1, 50)
    reason = "NVML: Not Supported"
    how = {"busy": "every 0.05 s", "tensor_active": "mean of 0.1 s"}
    how |= dict.fromkeys(("sm_occupancy", "others"), f"{ABSENT}{reason}")
    how["sm_clock"] = f"{ABSENT}psutil finds none"
    _, canvas = painted(PLOTS["utilization"], [Run(session)], STYLES[theme])
    session.environment |= {f"{SAMPLING}{name}": text for name, text in how.items()}
    session.telemetry["gpu0"]["others"][:] = np.nan
    canvas.refresh()
    names = [entry.name for entry in canvas.entries()]
    assert {"busy, every 0.05 s", "tensor cores, mean of 0.1 s"} <= set(names)
    assert f"no SM occupancy, by other processes: {reason}" in names
    assert "no clock: psutil finds none" in names


def test_telemetry_plots_say_that_a_session_has_none():
    session = gpu_session(1, 50)
    session.telemetry = {}
    assert PLOTS["utilization"].can_show([Run(session)]) == (
        "Utilization needs telemetry, but this session has none."
    )
    assert PLOTS["power"].can_show([Run(session)]) == "This session has no telemetry."


values = st.sampled_from([np.nan, 0.0, 1e-3, 12.0, 31_000.0, 1e9])


@st.composite
def sessions(draw):
    """Anything that a runner, or a damaged file, might hand over."""
    session = Session(title=draw(st.sampled_from(["", "one", LONG])))
    now = 0.0
    for index in range(draw(st.integers(0, 6))):
        count = draw(st.sampled_from([0, 1, 2, 40, 300]))
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        steps = Columns(STEP_COLUMNS)
        starts = now + np.cumsum(rng.random(count) * draw(st.sampled_from([0.0, 1e-4, 1.0])))
        times = np.full(count, draw(values)) * rng.choice([1.0, 1.01, np.nan], count)
        steps.append(
            {
                "t_s": starts,
                "gpu_ms": times if draw(st.booleans()) else np.full(count, np.nan),
                "wall_ms": times,
                "allocated": np.full(count, draw(values)),
                "peak": np.full(count, draw(values)),
                "phase": rng.integers(0, 7, count),
            }
        )
        stop = float(starts[-1]) if count else now
        session.segments.append(
            Segment(
                index,
                Configuration(family="hydra", preset="tiny"),
                draw(st.sampled_from(["", "two words", LONG])),
                now,
                phases=[PhaseSpan(draw(st.integers(0, 9)), now, stop)],
                ledger=draw(st.sampled_from([{}, {"tokens_per_step": 64}])),
                steps=steps,
            )
        )
        session.events.append(Event(now, draw(st.sampled_from(["toggle", "error", "info"])), LONG))
        now = stop
    if draw(st.booleans()):
        table = Columns(TELEMETRY_COLUMNS)
        rows = draw(st.sampled_from([0, 1, 500]))
        table.append({"t_s": np.linspace(0, max(now, 1.0), rows), "busy": np.full(rows, 50.0)})
        session.telemetry[draw(st.sampled_from(["gpu0", "cpu"]))] = table
    return session


@given(st.lists(sessions(), min_size=1, max_size=3), st.sampled_from(sorted(STYLES)))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_a_session_holds_every_plot_draws_it_or_says_why_not(sessions, style):
    runs = [Run(session, color=color) for color, session in enumerate(sessions)]
    for plot in PLOTS.values():
        reason = plot.can_show(runs)
        if reason is None:
            painted(plot, runs, STYLES[style], size=(320, 180))
        columns = plot.table(runs)
        assert len({len(column) for column in columns.values()}) == 1


@pytest.mark.parametrize("name", ["step_time", "memory", "ecdf", "utilization"])
def test_legend_and_labels_stay_inside_the_chart_however_long_they_are(name):
    session = gpu_session(5, 120, title=LONG, labels=tuple(f"{i} {LONG}" for i in range(5)))
    for style in ("dark", "print"):
        _, canvas = painted(PLOTS[name], [Run(session)], STYLES[style], size=(520, 420))
        header = canvas.header
        for (left, _), entry in zip(header._corners, canvas.entries(), strict=True):
            assert (
                left + header._entry_width(entry, _metrics(STYLES[style])) <= header.size().width()
            )
        assert canvas.vb.rect().height() > 150


def _metrics(style):
    from PySide6.QtGui import QFontMetricsF

    return QFontMetricsF(style.font())


def test_labels_of_markers_do_not_overlap():
    session = gpu_session(8, 30)
    for number in range(30):
        session.events.append(Event(0.5 + 0.9 * number, "note", f"note number {number}"))
    _, canvas = painted(PLOTS["step_time"], [Run(session)], STYLES["print"], size=(900, 500))
    metrics = _metrics(STYLES["print"])
    rows: dict[int, list[tuple[float, float]]] = {}
    for _, left, row, text, _ in canvas.lane._labels:
        if text:
            width = metrics.horizontalAdvance(text) * 0.9  # the labels' face is a little smaller
            rows.setdefault(row, []).append((left, left + width))
    assert sum(map(len, rows.values())) > 5
    for spans in rows.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert spans[0][0] >= 0 and spans[-1][1] <= canvas.vb.rect().width() + 1


def test_the_mark_of_another_model_names_it_and_that_of_the_same_does_not():
    session = gpu_session(3, 10)
    session.events.clear()
    other = msgspec.structs.replace(session.segments[2].configuration, family="mamba2")
    session.segments[2].configuration = other
    label = session.segments[2].label
    same, another = [mark.text for mark in marks(session)]
    assert same == session.segments[1].label
    assert another == f"mamba2 {other.preset} {other.workload}: {label}"


def test_one_slow_step_does_not_flatten_the_others_and_is_told():
    session = gpu_session(1, 400)
    session.segments[0].steps["gpu_ms"][200] = 31_000.0
    times = np.asarray(session.segments[0].steps["gpu_ms"])
    highest = times[times < 1.5 * np.median(times)].max()
    _, canvas = painted(PLOTS["step_time"], [Run(session)], STYLES["dark"])
    bottom, top = canvas.vb.viewRange()[1]
    assert bottom == 0
    assert highest < top < 1.2 * highest  # room for the note, and none for what it tells of
    assert canvas._off_scale.text == "above the axis: up to 31.0 s"


def test_no_phase_is_named_below_the_note_on_what_is_off_the_scale():
    session = gpu_session(1, 400)
    segment = session.segments[0]
    segment.steps["gpu_ms"][:] = 20.0
    last = float(segment.steps["t_s"][-1])
    segment.phases.append(PhaseSpan(Phase.WARM_UP, 0.8 * last, last))

    def named() -> list[str]:
        _, canvas = painted(PLOTS["step_time"], [Run(session)], STYLES["print"], size=(900, 500))
        frame = canvas._frame(canvas.vb.rect())
        (phases,) = (layer for layer in canvas.layers if isinstance(layer, Phases))
        places = [(area.left(), name) for area, _, name in phases.areas(frame) if name]
        return [name for left, name in places if left > 0.5 * frame.width]

    assert named() == ["warm-up"]
    segment.steps["gpu_ms"][200] = 31_000.0
    assert named() == []


def test_the_second_axis_reads_what_was_measured():
    session = gpu_session(1, 200)
    _, canvas = painted(PLOTS["power"], [Run(session)], STYLES["dark"])
    lines = [layer for layer in canvas.layers if isinstance(layer, Line)]
    clock_layer = next(line for line in lines if "SM clock" in line.appearance.name)
    measured = session.telemetry["gpu0"]["sm_clock"][-1]
    assert clock_layer.reading(float("nan")) == f"{measured:.0f} MHz"
    right = canvas.axis("right")
    drawn = clock_layer.value(float("nan"))
    assert drawn * right.factor == pytest.approx(float(measured), rel=1e-6)


def test_throughput_of_a_persons_own_file_counts_samples_and_nothing_if_they_differ():
    session = gpu_session(2, 40)
    own = Configuration(family="own", preset="file", model={"source": "mine.py:build"})
    session.segments[0].configuration = own
    assert "steps_per_s" in PLOTS["throughput"].table([Run(session)])
    session.segments[1].configuration = own
    assert "samples_per_s" in PLOTS["throughput"].table([Run(session)])
    assert energy_table(session).columns[2].name == "samples"
    hf = Configuration(family="own", preset="file", model={"source": "hf:qwen3-0.6b"})
    assert hf.throughput_unit == "tokens"


def test_throughput_counts_tokens_only_if_every_segment_does():
    session = gpu_session(2, 40)
    assert "tokens_per_s" in PLOTS["throughput"].table([Run(session)])
    del session.segments[1].ledger["tokens_per_step"]
    table = PLOTS["throughput"].table([Run(session)])
    np.testing.assert_allclose(
        table["steps_per_s"], 1e3 / np.concatenate([s.steps["gpu_ms"] for s in session.segments])
    )


def test_aligned_sessions_begin_at_zero_by_time_and_by_step():
    runs = [Run(gpu_session(2, 80, seed=seed), f"run {seed}", seed) for seed in range(2)]
    by_time = PLOTS["aligned_timeline"].table(runs, align="time")
    by_step = PLOTS["aligned_timeline"].table(runs, align="step")
    for run in runs:
        own = by_time["session"] == run.title
        assert by_time["aligned_s"][own].min() == 0.0
        assert by_time["segment"].dtype.kind == "i", "0 in a file, and not 0.0"
        steps = by_step["steady_step"][own]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))


def test_drawing_again_after_new_steps_shows_them_and_costs_no_new_layers():
    session = gpu_session(1, 50)
    _, canvas = painted(PLOTS["step_time"], [Run(session)], STYLES["dark"])
    layers = len(canvas.layers)
    last = float(session.segments[0].steps["t_s"][-1])
    session.segments[0].steps.append({"t_s": [last + 1.0], "gpu_ms": [24.0], "phase": [5]})
    canvas.refresh()
    assert canvas.x_span()[1] == last + 1.0 - session.segments[0].start_s
    assert len(canvas.layers) == layers


def test_a_long_session_is_thinned_to_the_pixels_that_show_it():
    _, canvas = painted(PLOTS["step_time"], [Run(long_session(200_000))], STYLES["dark"])
    for layer in canvas.layers:
        for view, _ in getattr(layer, "_views", []):
            assert len(view.x) < 1000


def test_charts_with_the_same_name_and_data_are_the_same_in_window_and_file(tmp_path):
    runs = [Run(gpu_session(2, 100))]
    image = plot_export.plot_image(PLOTS["step_time"], runs, (640, 360))
    plot_export.export_plot("step_time", runs, tmp_path / "chart.png", (640, 360))
    assert QImage(str(tmp_path / "chart.png")).size() == image.size()
    assert PRINT.surface == "#ffffff"


def test_a_scene_asks_all_of_its_items_where_they_are(qapp):
    """The grid's axes grow with the view box untold: an index painted a canvas that was gone."""
    view = canvas_view()
    assert view.scene().itemIndexMethod() == QGraphicsScene.ItemIndexMethod.NoIndex
