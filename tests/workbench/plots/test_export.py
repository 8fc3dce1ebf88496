import csv
import gc
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import msgspec
import numpy as np
import profile_samples
import pytest
import scaling_samples
from hang_limit import HANG_S
from PySide6.QtGui import QGuiApplication, QImage
from synthetic import bench_session, cpu_session, empty_session, gpu_session, sweep_study

from sessions.model import Session
from sessions.tables import comparison_table
from sessions.verdicts.comparison import compare
from sessions.verdicts.energy import FACT, judge_energy
from workbench import plot_export
from workbench.plots import PLOTS, Run
from workbench.theming.theme import DARK

SVG = "{http://www.w3.org/2000/svg}"
SIZE = (720, 420)
AXIS = r"\(\S+\)$|^Sequence$|^Ranks$"  # an axis of every chart: a title with its unit


FOLDERS = str(Path(__file__).resolve().parents[1] / "samples"), str(Path(__file__).parents[3])


def energy_session() -> Session:
    """Return a session whose verdict has the joules of a step of both arms."""
    session = gpu_session(4, 300)
    joules = [[2.0 + 0.01 * pair, 1.5 + 0.02 * (pair % 3)] for pair in range(8)]
    session.comparisons[0].facts[FACT] = msgspec.to_builtins(judge_energy(joules))
    return session


@pytest.fixture(scope="module")
def sessions_to_show():
    profiled = Session(title="profiled", studies=[profile_samples.rich_study(blocks=2)])
    swept = [Session(studies=[sweep_study()]), Session(studies=[sweep_study(two=True)])]
    described = [profile_samples.session(2), profiled]
    scaled = Session(studies=[scaling_samples.study()])
    return [gpu_session(4, 300), *described, *swept, scaled, bench_session(), energy_session()]


@pytest.fixture(scope="module")
def runs(sessions_to_show):
    return [Run(sessions_to_show[0])]


@pytest.fixture
def shown(name, sessions_to_show):
    """Return a run that has what the plot of that name shows."""
    every = [[Run(session)] for session in sessions_to_show]
    every.append([Run(gpu_session(4, 300)), Run(gpu_session(4, 300))])  # two of one configuration
    return next(runs for runs in every if PLOTS[name].can_show(runs) is None)


def streams(pdf: bytes) -> list[bytes]:
    """Return the unpacked page contents."""
    compressed = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL)
    unpacked = []
    for raw in compressed:
        try:
            unpacked.append(zlib.decompress(raw))
        except zlib.error:
            continue
    return unpacked


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_a_png_has_two_pixels_for_each_of_its_size(name, shown, tmp_path):
    path = plot_export.export_plot(name, shown, tmp_path / f"{name}.png", SIZE)
    image = QImage(str(path))
    assert (image.width(), image.height()) == (2 * SIZE[0], 2 * SIZE[1])
    assert image.dotsPerMeterX() == pytest.approx(2 * 96 / 0.0254, abs=1)


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_an_svg_is_vector_its_text_is_text_and_nothing_lies_outside(name, shown, tmp_path):
    path = plot_export.export_plot(name, shown, tmp_path / f"{name}.svg", SIZE)
    root = ET.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox") == f"0 0 {SIZE[0]} {SIZE[1]}"
    assert not list(root.iter(f"{SVG}image"))
    texts = ["".join(node.itertext()).strip() for node in root.iter(f"{SVG}text")]
    assert PLOTS[name].title in texts
    assert any(re.search(AXIS, text) for text in texts), texts
    lines = [node.get("points") for node in root.iter(f"{SVG}polyline")]
    lines += [node.get("points") for node in root.iter(f"{SVG}polygon")]
    paths = list(root.iter(f"{SVG}path"))
    assert len(lines) + len(paths) + len(list(root.iter(f"{SVG}rect"))) > 3
    for group in root.iter(f"{SVG}g"):
        matrix = re.match(r"matrix\((.*)\)", group.get("transform", ""))
        if matrix is None:
            continue
        a, b, c, d, e, f = (float(part) for part in matrix.group(1).split(","))
        for line in group.findall(f"{SVG}polyline"):
            points = np.array([p.split(",") for p in line.get("points").split()], float)
            x = a * points[:, 0] + c * points[:, 1] + e
            y = b * points[:, 0] + d * points[:, 1] + f
            assert x.min() >= -1 and x.max() <= SIZE[0] + 1
            assert y.min() >= -1 and y.max() <= SIZE[1] + 1


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_a_pdf_is_vector_its_text_is_text_and_its_page_is_the_chart(name, shown, tmp_path):
    path = plot_export.export_plot(name, shown, tmp_path / f"{name}.pdf", SIZE)
    content = path.read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    assert b"/Image" not in content
    box = re.search(rb"/MediaBox \[([^\]]*)\]", content)
    assert box is not None
    page = [float(part) for part in box.group(1).split()]
    assert page == pytest.approx([0, 0, SIZE[0] * 0.75, SIZE[1] * 0.75], abs=1.0)
    pages = streams(content)
    assert any(re.search(rb"\bT[jJ]\b", part) for part in pages)
    assert sum(len(re.findall(rb"\b(?:l|c|re)\n", part)) for part in pages) > 20
    assert b"/FontFile2" in content


def test_the_cross_reference_table_of_a_pdf_still_fits(runs, tmp_path):
    content = plot_export.export_plot("box", runs, tmp_path / "box.pdf", SIZE).read_bytes()
    start = int(re.search(rb"startxref\s+(\d+)", content).group(1))
    assert content[start : start + 4] == b"xref"
    for offset in re.findall(rb"(\d{10}) 00000 n", content[start:]):
        assert re.match(rb"\d+ 0 obj", content[int(offset) : int(offset) + 16])


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_a_csv_holds_exactly_the_data_that_is_drawn(name, shown, tmp_path):
    path = plot_export.export_plot(name, shown, tmp_path / f"{name}.csv", SIZE)
    table = PLOTS[name].table(shown)
    with path.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == list(table)
    for index, column in enumerate(table.values()):
        cells = [row[index] for row in rows[1:]]
        column = np.asarray(column)
        if column.dtype.kind in "fi":
            read = np.array([float(cell) if cell else np.nan for cell in cells])
            np.testing.assert_array_equal(read.astype(column.dtype), column)
        else:
            assert cells == [str(value) for value in column.tolist()]


def test_the_raw_steps_of_a_csv_are_those_of_the_session(tmp_path):
    session = cpu_session(150)
    path = plot_export.export_plot("step_time", [Run(session)], tmp_path / "steps.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    times = np.concatenate([segment.steps["wall_ms"] for segment in session.segments])
    starts = np.concatenate([segment.steps["t_s"] for segment in session.segments])
    read = np.array([float(row["step_ms"]) for row in rows], np.float32)
    np.testing.assert_array_equal(read, times)
    np.testing.assert_array_equal([float(row["t_s"]) for row in rows], starts)
    assert {row["phase"] for row in rows} == {"warm-up", "steady"}


def test_a_label_with_commas_quotes_and_line_breaks_stays_one_cell(tmp_path):
    session = gpu_session(1, 5, title='a, "b"\nc', labels=('x, "y"\nz',))
    path = plot_export.export_plot("step_time", [Run(session)], tmp_path / "odd.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["session"], row["label"]) for row in rows} == {('a, "b"\nc', 'x, "y"\nz')}


@pytest.mark.parametrize(
    ("name", "file", "options", "expected"),
    [
        (
            "bars",
            "a.png",
            {},
            "There is no plot 'bars'; expected one of aligned_timeline, ",
        ),
        ("box", "a.bmp", {}, "unknown suffix '.bmp', expected one of .png, .svg, .pdf, .csv"),
        ("box", "a", {}, "unknown suffix ''"),
        ("box", "no/such/folder/a.png", {}, "No such file or directory; choose another place"),
        ("box", "nul\0.png", {}, "null byte"),
        ("power", "a.png", {"left": "x"}, "has no option 'left'; it has: right"),
        ("power", "a.png", {"right": "x"}, "cannot be 'x'; expected one of sm_clock, temperature"),
        ("box", "a.png", {"x": "y"}, "has no option 'x'; it has: none"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(name, file, options, expected, runs, tmp_path):
    with pytest.raises(plot_export.ExportError) as caught:
        plot_export.export_plot(name, runs, tmp_path / file, options=options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", plot_export.SUFFIXES)
def test_a_plot_without_data_is_not_written(suffix, tmp_path):
    with pytest.raises(plot_export.ExportError, match=r"Cannot export memory: No memory has been"):
        plot_export.export_plot("memory", [Run(empty_session())], tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_plot_that_fails_as_it_is_drawn_is_an_error_and_no_crash(
    suffix, runs, tmp_path, monkeypatch
):
    def fail(canvas):
        raise ValueError("cannot reshape")

    monkeypatch.setattr(plot_export.Canvas, "refresh", fail)
    with pytest.raises(ValueError, match="cannot reshape"):
        plot_export.export_plot("box", runs, tmp_path / f"box{suffix}")
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_file_is_refused_and_left_alone(runs, tmp_path):
    (tmp_path / "chart.svg").mkdir()
    with pytest.raises(plot_export.ExportError, match="choose another place"):
        plot_export.export_plot("box", runs, tmp_path / "chart.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["chart.svg"]


def test_the_options_of_a_plot_reach_the_file(runs, tmp_path):
    path = plot_export.export_plot(
        "power", runs, tmp_path / "heat.svg", options={"right": "temperature"}
    )
    assert "Temperature (°C)" in path.read_text()


def test_a_dark_export_is_dark(runs, tmp_path):
    path = plot_export.export_plot("memory", runs, tmp_path / "dark.png", theme=DARK)
    assert QImage(str(path)).pixelColor(2, 2).name() == DARK.surface


def test_an_image_goes_to_the_clipboard(runs):
    plot_export.copy_image(PLOTS["ecdf"], runs, SIZE)
    assert QGuiApplication.clipboard().image().width() == 2 * SIZE[0]


def test_tables_go_to_the_clipboard_as_csv_and_markdown(qapp):
    sessions: list[Session] = [gpu_session(1, 300, seed=seed, title=f"s{seed}") for seed in (1, 2)]
    table = comparison_table(compare(sessions))
    plot_export.copy_table(table, ".csv")
    assert QGuiApplication.clipboard().text().startswith("session,")
    plot_export.copy_table(table, ".md")
    assert "| --- |" in QGuiApplication.clipboard().text()
    with pytest.raises(
        plot_export.ExportError, match=r"unknown suffix '.xls', expected one of .csv"
    ):
        plot_export.copy_table(table, ".xls")


def test_export_needs_no_application_no_window_and_no_display(tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from synthetic import gpu_session\n"
        "from workbench.plot_export import export_plot\n"
        "from workbench.plots import Run\n"
        "export_plot('step_time', [Run(gpu_session(2, 50))], sys.argv[3])\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *FOLDERS, str(tmp_path / "chart.pdf")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "chart.pdf").stat().st_size > 5000


def test_a_picture_is_refused_where_no_font_could_draw_its_text(tmp_path):
    """Qt draws boxes then, and tells nobody. An SVG is drawn with the fonts of its reader."""
    fonts = tmp_path / "fonts.conf"
    fonts.write_text("<fontconfig></fontconfig>")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from synthetic import gpu_session\n"
        "from workbench.plot_export import ExportError, export_plot\n"
        "from workbench.plots import Run\n"
        "for name in ('a.png', 'a.pdf', 'a.svg'):\n"
        "    try:\n"
        "        export_plot('step_time', [Run(gpu_session(2, 50))], name)\n"
        "    except ExportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *FOLDERS],
        env={**os.environ, "FONTCONFIG_FILE": str(fonts), "QT_QPA_PLATFORM": "offscreen"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    refused = done.stdout.splitlines()
    assert len(refused) == 2
    assert all("no font was found" in line and "fonts-dejavu-core" in line for line in refused)
    assert [path.name for path in tmp_path.glob("a.*")] == ["a.svg"]


def test_a_verdict_on_paper_names_its_arms_by_what_tells_them_apart(qapp):
    """In the window the panel names them; a figure by itself said B against A, and no more."""
    session = gpu_session(4, 60)
    comparison = session.comparisons[0]
    comparison.arms[:] = ["AdamW: Fused", "Checkpointing: Full, AdamW: Fused"]
    drawn = plot_export.plot_svg(PLOTS["verdict"], [Run(session)]).decode()
    assert "A: without, B: Checkpointing: Full" in " ".join(ET.fromstring(drawn).itertext())


def test_a_legend_on_paper_cuts_names_and_never_the_medians_beside_them(qapp):
    """It said "Gradient che…ian 3.96 ms)"."""
    labels = tuple(f"{number}: Gradient checkpointing: Every block" for number in range(10))
    runs = [Run(gpu_session(10, 300, labels=labels))]
    texts = " ".join(ET.fromstring(plot_export.plot_svg(PLOTS["ecdf"], runs)).itertext())
    assert len(re.findall(r" \(median [\d.]+ ms\)", texts)) == len(labels)
