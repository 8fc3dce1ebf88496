"""A report is one page that needs no other file, says what its sessions hold, and hides nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import urllib.parse
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import profile_samples
import pytest
from complete_session import everything
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import empty_session, gpu_session, sweep_study

from sessions.model import Event, Evidence, Phase
from sessions.numbers import text
from sessions.storage import hdf5
from sessions.storage.study_schema import STUDIES
from sessions.studies import prediction
from sessions.tables import Table, segments_table
from sessions.verdicts.verdict_tables import verdicts_table
from workbench.cli import main
from workbench.plot_export import ExportError
from workbench.plots import PLOTS, Run
from workbench.report import SECTIONS, _page, overview
from workbench.report._section import Chart, Words

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Content of a page: texts, headings, links, pictures; and whether every tag is closed."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.sections: list[str] = []
        self.anchors: list[str] = []
        self.needs: list[str] = []  # what the page would have to load
        self.pictures: list[bytes] = []
        self.wrong: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections.append(values["id"])
        for name in ("src", "href"):
            if name in values:
                self._link(values[name])
        if tag in ("script", "link", "iframe", "object", "embed"):
            self.needs.append(tag)

    def _link(self, target: str) -> None:
        kind, _, content = target.partition(",")
        if target.startswith("#"):
            self.anchors.append(target[1:])
        elif kind == "data:image/svg+xml":
            self.pictures.append(urllib.parse.unquote_to_bytes(content))
        else:
            self.needs.append(target)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            if "url(" in data or "@import" in data:
                self.needs.append("style")
        elif data.strip():
            self.texts.append(data)
            if self.open[-1] == "h2":
                self.headings.append(data)

    @property
    def is_valid(self) -> bool:
        return not self.open and not self.wrong and not self.needs


@pytest.fixture(scope="module")
def session():
    return everything()


@pytest.fixture(scope="module")
def runs(session):
    return [Run(session, "everything")]


@pytest.fixture(scope="module")
def page(qapp, runs):
    return Page(_page.page(runs, "Does it help?", "Two lines\nof notes"))


@pytest.fixture
def saved(session, tmp_path):
    path = tmp_path / "a.h5"
    hdf5.save(session, path)
    return path


def test_every_section_tells_what_it_is_and_stands_in_a_place_of_its_own():
    assert len({section.order for section in SECTIONS.values()}) == len(SECTIONS)
    for name, section in SECTIONS.items():
        module = __import__(f"workbench.report.{name}", fromlist=["SECTION"])
        assert module.SECTION is section and section.title and section.help


def test_the_page_needs_no_other_file_and_every_tag_is_closed(page):
    assert page.is_valid, (page.open, page.wrong, page.needs)
    assert page.texts[0] == "Does it help?" and "of notes" in page.texts


def test_each_section_that_has_something_is_there_once_in_order_and_linked(page):
    wanted = [name for name in SECTIONS if name != "comparison"]
    assert page.sections == wanted == page.anchors
    assert page.headings == [SECTIONS[name].title for name in wanted]


# Plots that some section of a report of one session shows. A new plot may be in none.
IN_REPORTS = (
    *("attribution", "box", "breakdown", "memory", "memory_course", "memory_roles"),
    *("model_metrics", "power", "roofline", "step_time", "sweep_memory", "sweep_throughput"),
    *("sweep_time", "throughput", "utilization", "verdict"),
)


def test_every_picture_is_a_drawing_and_every_plot_of_one_session_has_one(page):
    titles = set()
    for picture in page.pictures:
        root = xml.etree.ElementTree.fromstring(picture)
        assert root.tag.endswith("}svg") and sum(1 for _ in root.iter()) > 10
        titles.add(root.findtext("{http://www.w3.org/2000/svg}title"))
    assert titles >= {PLOTS[name].title for name in IN_REPORTS}


def test_tables_have_the_numbers_of_the_session(page, session):
    for table in (segments_table(session), verdicts_table(session.comparisons)):
        missing = {text(cell) for row in table.rows for cell in row if cell} - set(page.texts)
        assert not {text for text in missing if text.strip()}


def test_wrong_numbers_are_told_first_and_in_red(qapp):
    session = gpu_session(steps=50)
    session.segments[1].ledger |= {"numbers": "relative error 0.3", "numbers_right": False}
    content = _page.page([Run(session, "one")], sections=["overview"])
    label = session.segments[1].label
    assert f'<p class="bad"><span>{label}: wrong numbers: relative error 0.3</span>' in content


def test_evidence_of_nothing_stands_out(qapp):
    session = gpu_session(steps=50)
    session.segments[0].evidence = [Evidence("adamw", "fused", "no effect", "no such kernel ran")]
    content = _page.page([Run(session, "one")], sections=["evidence"])
    assert '<td class="warning">no effect</td><td>no such kernel ran</td>' in content


def test_sessions_are_compared_with_the_first_and_each_told_under_its_name(qapp):
    runs = [Run(gpu_session(steps=80, seed=seed), f"run {seed}", seed) for seed in (1, 2)]
    page = Page(_page.page(runs))
    assert page.sections[:2] == ["overview", "comparison"] and page.is_valid
    assert page.texts.count("run 1") >= 3
    assert SECTIONS["comparison"].why_not(runs[:1]).startswith("2 to 10 sessions")
    (table, *charts) = [
        part for part in SECTIONS["comparison"].made(runs) if isinstance(part, Table | Chart)
    ][:4]
    compared = [row[1] for row in table.rows]
    for chart in charts:
        assert [run.chosen()[0].title for run in chart.runs] == compared
        assert all(len(run.chosen()) == 1 for run in chart.runs), "what the ratios are of"


def test_a_page_of_sessions_that_cannot_be_compared_has_all_else(qapp):
    """One without a steady step, or an eleventh, left no page at all."""
    runs = [Run(gpu_session(2, 80, seed=seed), f"run {seed}", seed) for seed in range(11)]
    assert "comparison" not in [section.name for section in _page.offered(runs)]
    assert "comparison" in [section.name for section in _page.offered(runs[1:])]
    for segment in runs[0].session.segments:
        segment.steps["phase"][:] = Phase.WARM_UP
    page = Page(_page.page(runs[:2]))
    assert page.is_valid and "segments" in page.sections and "comparison" not in page.sections


def test_a_sweep_over_two_fields_has_a_map_of_every_arm(qapp):
    session = gpu_session(steps=60)
    session.studies = [sweep_study(two=True)]
    arms = session.studies[0].request["arms"]
    page = Page(_page.page([Run(session, "one")], sections=["sweep"]))
    assert len(arms) > 1 and len(page.pictures) == len(arms)
    assert all(any(arm.encode() in picture for picture in page.pictures) for arm in arms)


def test_a_check_that_failed_is_red_at_the_top(qapp, runs):
    top = _page.page(runs, sections=["overview"])
    assert '<p class="bad"><span>Checklist: 1 pass, 1 fail' in top


def test_a_printed_page_breaks_the_long_lines_of_a_script(qapp, runs):
    printed = _page.page(runs, sections=["again"]).partition("@media print {")[2]
    assert "pre { white-space: pre-wrap; overflow-wrap: anywhere; }" in printed.partition("<")[0]


def test_a_verdict_stands_beside_its_prediction(qapp, session):
    made = {"ratio": 0.5, "text": "at the measured ceilings, A needs at least 2 ms and B 1 ms"}
    comparison = session.comparisons[0]
    comparison = msgspec.structs.replace(comparison, facts={**comparison.facts, "prediction": made})
    foretold = dataclasses.replace(session, comparisons=[comparison])
    page = Page(_page.page([Run(foretold, "one")], sections=["verdicts"]))
    assert prediction.outcome(comparison).startswith("Predicted 0.50, measured ")
    assert prediction.outcome(comparison) in page.texts


def test_scripts_of_several_sessions_write_files_of_different_names(qapp):
    runs = [Run(gpu_session(steps=60, seed=seed), f"run {seed}", seed) for seed in (1, 2)]
    page = Page(_page.page(runs, sections=["again"]))
    scripts = [text for text in page.texts if "#!/bin/sh" in text]
    written = [word for script in scripts for word in script.split() if word.endswith(".h5")]
    assert len(scripts) == 2 and len(written) > 1 and len({*written}) == len(written)
    assert "again-0000.h5" in _page.page(runs[:1], sections=["again"])


def test_what_is_chosen_is_what_is_there_in_that_order(qapp, runs):
    assert Page(_page.page(runs, sections=["again", "claims"])).sections == ["again", "claims"]


@pytest.mark.parametrize(
    ("sections", "why"),
    [(["nothing"], "There is no section 'nothing'; expected one of "),
     (["comparison"], "There is nothing for the section comparison: 2 to 10 sessions")],
)  # fmt: skip
def test_a_section_that_cannot_be_is_refused_in_a_sentence(qapp, runs, sections, why):
    with pytest.raises(ExportError, match=why):
        _page.page(runs, sections=sections)


def test_a_plot_without_data_leaves_its_reason_in_its_place(qapp):
    session = gpu_session(steps=50)
    session.telemetry = {}
    page = Page(_page.page([Run(session, "one")], sections=["machine"]))
    for name in ("utilization", "power"):
        plot = PLOTS[name]
        assert f"{plot.title}: {plot.can_show([Run(session)])}" in page.texts


def test_an_empty_session_makes_a_page_that_says_so(qapp):
    page = Page(_page.page([Run(empty_session(), "none")]))
    assert page.is_valid and page.sections[0] == "overview"
    assert any("0 segments" in text for text in page.texts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(words=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1))
def test_what_people_write_is_text_and_never_markup(qapp, words):
    session = empty_session(words)
    session.notes = words
    page = Page(_page.page([Run(session)], f"<b>{words}", words, ["overview"]))
    assert (
        page.is_valid and page.texts.count(f"<b>{words}") == 2
    )  # the head's title, and the page's


def test_the_first_page_states_each_finding_with_its_chart_and_repeats_none(qapp, runs, session):
    session.events.append(Event(12.0, "note", "the fan went on"))
    parts = [part for part in SECTIONS["overview"].made(runs) if isinstance(part, Words | Chart)]
    assert any("12 s: the fan went on" in part.lines for part in parts if isinstance(part, Words))
    for number, part in enumerate(parts):
        if isinstance(part, Chart):
            assert isinstance(parts[number - 1], Words) and len(parts[number - 1].lines) == 1
    assert sum(isinstance(part, Chart) for part in parts) >= 3
    page = Page(_page.page(runs))
    assert len(page.pictures) == len({*page.pictures})


def test_the_first_page_has_a_finding_for_every_kind_of_study(qapp):
    studies = everything().studies
    assert {study.kind for study in studies} == STUDIES.keys()
    for study in studies:
        session = empty_session()
        session.studies = [study]
        assert any(isinstance(part, Words) for part in overview._findings(Run(session))), study.kind


def test_studies_of_one_title_are_told_apart_by_a_number(qapp):
    session = gpu_session(steps=40)
    session.studies = [profile_samples.study(blocks=1), profile_samples.study(blocks=2)]
    page = Page(_page.page([Run(session, "one")], sections=["profile"]))
    assert "hydra base train: defaults" in page.texts
    assert "hydra base train: defaults (2)" in page.texts


def test_a_long_table_and_a_long_cell_fold_and_keep_all_of_their_text(qapp):
    session = gpu_session(steps=40)
    session.segments[0].evidence = [
        Evidence("adamw", "fused", "effective", f"kernel {n} ran; {'and more ' * 20}{n}")
        for n in range(40)
    ]
    content = _page.page([Run(session, "one")], sections=["evidence"])
    page = Page(content)
    assert page.is_valid and "25 more rows" in page.texts
    assert content.count("<td>kernel ") == 40 and content.count(">Details</summary>and more") == 40


# The command


def test_the_command_writes_the_page_and_tells_its_sections(saved, tmp_path, capsys):
    target = tmp_path / "r.html"
    sections = ["--sections", "verdicts, again,verdicts"]
    words = ["report", str(saved), "-o", str(target), *sections, "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["reason"], answer["file"]) == ("done", str(target))
    assert answer["sections"] == ["verdicts", "again"] and answer["bytes"] == target.stat().st_size
    assert Page(target.read_text()).sections == ["verdicts", "again"]


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [(["-o", "r.pdf"], 2, "unknown suffix '.pdf'"),
     (["-o", "r.html", "--sections", "verdict"], 2, "--sections: unknown 'verdict'"),
     (["-o", "r.html", "--sections", "comparison"], 2, "2 to 10 sessions")],
)  # fmt: skip
def test_what_cannot_be_written_is_one_sentence(
    saved, tmp_path, monkeypatch, capsys, more, code, why
):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(saved), *more]) == code
    assert why in capsys.readouterr().err and not Path("r.html").exists()


def test_a_page_forbids_all_but_its_own_style_and_pictures(session):
    hostile = dataclasses.replace(session, title="</style><style>*{}</style>\u202e\x1b[31m")
    page = _page.page([Run(hostile, hostile.title)])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert page.count("<style>") == 1 and "\x1b" not in page and "\u202e" not in page
