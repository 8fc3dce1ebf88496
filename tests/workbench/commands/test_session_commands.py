"""The commands that read session files: info, compare, export, recover; and doctor."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import attribution_samples
import claims_samples
import msgspec
import numpy as np
import optimization_samples
import profile_samples
import pytest
from hang_limit import HANG_S
from sent_commands import only

from sessions.model import ABSENT, SAMPLING, PairedComparison, Phase, Session, Study
from sessions.storage import atomic_write, hdf5
from workbench import protocol
from workbench.cli import main
from workbench.client.recorder import Recorder
from workbench.commands._command import names
from workbench.plots import PLOTS


def printed(arguments: list[str | Path], capsys) -> str:
    """Return the output of a command that succeeds."""
    assert main(list(map(str, arguments))) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def configurations(path: Path) -> list:
    return [segment.configuration for segment in hdf5.load(path).segments]


def test_info_shows_title_environment_and_a_row_a_segment(ran, capsys):
    out = printed(["info", ran.path], capsys)
    assert out.startswith("hydra tiny train (")
    assert f"torch: {ran.catalogue.environment['torch']}\n" in out
    assert "| AdamW: Fused |" in out


def test_info_as_json_holds_what_the_run_printed(ran, capsys):
    answer = json.loads(printed(["info", ran.path, "--json"], capsys))
    assert answer["segments"] == json.loads(ran.out)["segments"]
    printed_environment, here = (
        {k: v for k, v in environment.items() if not k.startswith(SAMPLING)}
        for environment in (answer["environment"], ran.catalogue.environment)
    )
    assert printed_environment == here
    assert answer["environment"]["sampling tensor_active"].startswith("absent: ")
    assert answer.keys() == {
        *("reason", "title", "id", "created", "notes", "environment"),
        *("comparisons", "segments", "studies", "events"),
    }


def test_the_peak_that_programs_are_told_is_that_of_the_table(pair, capsys):
    session = hdf5.load(pair[0])
    for segment in session.segments:
        steps = {name: np.array(segment.steps[name]) for name in segment.steps}
        steps["phase"][0], steps["peak"][0] = Phase.AUTOTUNE, 77 * 2**30  # before all steady ones
        segment.steps = steps
    hdf5.save(session, pair[0])
    (printed_segment,) = json.loads(printed(["info", pair[0], "--json"], capsys))["segments"]
    base = json.loads(printed(["compare", *pair, "--json"], capsys))["arms"][0]
    assert printed_segment["peak_bytes"] == base["peak_bytes"] < 77 * 2**30


def checked() -> Study:
    rows = {"check": ["syncs"], "status": ["fail"], "evidence": ["the host waits twice per step"]}
    lines = {"check": ["syncs"], "line": ["net.py:7 in forward: item()"]}
    tables = {"checks": rows, "lines": lines}
    columns = {name: {key: np.array(cells, object) for key, cells in table.items()}
               for name, table in tables.items()}  # fmt: skip
    return Study(kind="checklist", title="tiny: on", start_s=1.0, tables=columns)


def claimed() -> Study:
    recorder = Recorder()
    for message in claims_samples.messages(1.0):
        recorder.record(message)
    return recorder.session.studies[0]


@pytest.mark.parametrize(
    ("make", "expected", "table"),
    [
        (attribution_samples.study, "all together: ", "effects"),
        (optimization_samples.study, "precision=amp_bf16, ", "effects"),
        (profile_samples.study, "| total | ", "kernels"),
        (checked, "net.py:7 in forward: item()", "checks"),
        (claimed, "does not hold", "claims"),
        (lambda: Study("of another version", "?", 1.0, tables={"t": {"x": np.arange(3.0)}}),
         "t: 3 rows", "t"),
        (lambda: Study("attribution", "cut", 1.0, tables={"effects": {"x": np.arange(2.0)}}),
         "effects: 2 rows", "effects"),
    ],
    ids=["attribution", "optimization", "profile", "checklist", "claims", "unknown kind",
         "unknown columns"],
)  # fmt: skip
def test_info_tells_each_study_as_the_command_that_made_it(make, expected, table, pair, capsys):
    session, study = hdf5.load(pair[0]), make()
    session.studies.append(study)
    hdf5.save(session, pair[0])
    out = printed(["info", pair[0]], capsys)
    assert f"\n{study.kind}: {study.title}\n" in out and expected in out
    (answered,) = json.loads(printed(["info", pair[0], "--json"], capsys))["studies"]
    assert (answered["kind"], answered["title"]) == (study.kind, study.title)
    columns = study.tables[table]
    assert len(answered["tables"][table]) == len(next(iter(columns.values())))
    assert answered["tables"][table][0].keys() == columns.keys()


def test_info_shows_every_verdict_as_it_holds_among_all(pair, capsys):
    session = hdf5.load(pair[0])
    doubtful = PairedComparison(
        arms=["off", "on"], order=[0, 1], medians_ms=[10.0, 10.3], ratio=1.03, low=1.011,
        high=1.05, verdict="SLOWER", facts={"p": 0.03, "reasons": [], "pairs": 8},
    )  # fmt: skip
    clear = msgspec.structs.replace(doubtful, verdict="FASTER", facts={**doubtful.facts, "p": 1e-6})
    session.comparisons = [doubtful, clear]
    hdf5.save(session, pair[1])
    comparisons = json.loads(printed(["info", pair[1], "--json"], capsys))["comparisons"]
    assert [(row["verdict"], row["alone"], row["of"]) for row in comparisons] == [
        ("SLOWER", "SLOWER", 2),
        ("FASTER", "FASTER", 2),
    ]
    session.comparisons = [doubtful] * 2
    hdf5.save(session, pair[1])
    comparisons = json.loads(printed(["info", pair[1], "--json"], capsys))["comparisons"]
    assert {(row["verdict"], row["alone"], row["p_holm"]) for row in comparisons} == {
        ("UNDECIDED", "SLOWER", 0.06)
    }
    out = printed(["info", pair[1]], capsys)
    assert "### Verdicts, of 2 comparisons" in out and "| UNDECIDED | 0.0600 | SLOWER |" in out


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), 1e300, -1e300])
def test_json_holds_no_number_that_json_lacks_and_no_date_is_no_traceback(strange, pair, capsys):
    session = hdf5.load(pair[0])
    session.created = strange
    session.segments[0].ledger["loss"] = strange
    hdf5.save(session, pair[1])
    text = printed(["info", pair[1], "--json"], capsys)
    answer = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert answer["created"] == (strange if abs(strange) == 1e300 else None)
    assert "(at an unknown time)" in printed(["info", pair[1]], capsys)


def test_the_printed_commands_run_again_give_the_same_configuration(ran, tmp_path, capsys):
    script = printed(["info", ran.path, "--command"], capsys)
    folder = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join([folder, os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("saved tiny-0000.h5\n")
    assert configurations(tmp_path / "tiny-0000.h5") == configurations(ran.path)


def test_the_printed_command_of_odd_values_is_read_back_as_they_were(ran, sent, tmp_path, capsys):
    session = hdf5.load(ran.path)
    odd = msgspec.structs.replace(
        session.segments[0].configuration,
        model={"rope_theta": 1e-07, "tie_embeddings": False, "dim": 64},
        data="/it's a $(file) - of mine.txt",
        seed=2**63 - 1,
    )
    session.segments[0].configuration = odd
    hdf5.save(session, tmp_path / "odd.h5")
    script = printed(["info", tmp_path / "odd.h5", "--command"], capsys).splitlines()
    (line,) = [words for words in script if words.startswith("workbench ")]
    python = printed(["info", tmp_path / "odd.h5", "--python"], capsys)
    for again in (lambda: main(shlex.split(line)[1:]), lambda: exec(python, {})):
        commands = sent(ran.catalogue, protocol.Finished(reason="done", steps=0))
        try:
            assert again() == 0
        except SystemExit as ended:
            assert ended.code == 0
        start = only(commands, protocol.Start)
        assert start.configuration == odd
    assert line.startswith("workbench run ")


def test_compare_prints_ratios_and_differences(pair, capsys):
    out = printed(["compare", *pair], capsys)
    assert "| session |" in out and "| base |" in out and "| fast |" in out
    assert "the same title" not in out  # which names neither


def test_compare_as_json_gives_the_ratio_of_single_sessions_without_an_interval(pair, capsys):
    answer = json.loads(printed(["compare", *pair, "--json"], capsys))
    base, fast = answer["arms"]
    assert answer["baseline"] == 0
    assert (base["title"], base["ratio"], base["note"]) == ("base", None, "baseline")
    assert fast["title"] == "fast" and base["n"] > 100
    assert (fast["ratio_low"], fast["ratio_high"]) == (None, None)  # they are not paired
    assert fast["ratio"] == pytest.approx(fast["median_ms"] / base["median_ms"], rel=1e-3)
    assert fast["ratio"] == pytest.approx(0.7, rel=0.02)  # as the two were made


def test_compare_tells_programs_of_wrong_numbers_and_of_different_work_too(pair, capsys):
    session = hdf5.load(pair[1])
    for segment in session.segments:
        segment.ledger |= {"numbers": "against float64: off", "numbers_right": False}
        smaller = {**segment.configuration.settings, "batch": 1}
        segment.configuration = msgspec.structs.replace(segment.configuration, settings=smaller)
    hdf5.save(session, pair[1])
    answer = json.loads(printed(["compare", *pair, "--json"], capsys))
    assert answer["reason"] == "done"
    assert [arm["numbers"] for arm in answer["arms"]] == ["", "WRONG"]
    assert any("different work (settings.batch)" in warning for warning in answer["warnings"])


@pytest.mark.parametrize("command", ["compare", "export --table comparison"])
def test_more_sessions_than_are_compared_is_a_mistake_before_any_is_read(
    command, pair, monkeypatch, capsys
):
    monkeypatch.setattr("sessions.storage.hdf5.load", lambda _: pytest.fail("it was read"))
    assert main([*command.split(), *[str(pair[0])] * 11]) == 2
    assert (
        "compare 2 to 10 sessions at a time, not 11: name as many files" in capsys.readouterr().err
    )


def test_compare_writes_the_table_that_it_prints(pair, tmp_path, capsys):
    out = printed(["compare", *pair, "-o", tmp_path / "table.MD"], capsys)
    assert (tmp_path / "table.MD").read_text(encoding="utf-8") == out
    printed(["compare", *pair, "-o", tmp_path / "table.csv"], capsys)
    rows = list(csv.DictReader((tmp_path / "table.csv").open(newline="")))
    assert [row["session"] for row in rows] == ["base", "fast"]
    assert float(rows[1]["ratio (x step time)"]) == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize("numbers", ["", "0", "0,-1", "0,x", "0," + "9" * 5000])
def test_segments_that_are_no_numbers_are_a_mistake(numbers, pair, capsys):
    assert main(["compare", *map(str, pair), "--segments", numbers]) == 2
    assert "expected 2 whole numbers, one for each file" in capsys.readouterr().err


def test_a_warning_stays_on_its_line_and_has_no_markup(pair, tmp_path, capsys):
    session = hdf5.load(pair[1])
    session.environment["gpu"] = "<img src=x>\n# Title"
    hdf5.save(session, tmp_path / "odd.h5")
    answer = printed(["compare", pair[0], tmp_path / "odd.h5"], capsys)
    (warning,) = (line for line in answer.splitlines() if "gpu differs" in line)
    assert "\\<img src=x\\> # Title" in warning and "\n# Title" not in answer


def test_any_segment_of_each_file_can_be_compared(pair, capsys):
    session = hdf5.load(pair[1])
    first = session.segments[0]
    session.segments.append(dataclasses.replace(first, index=1, label="another"))
    hdf5.save(session, pair[1])
    answer = json.loads(printed(["compare", *pair, "--segments", "0,1", "--json"], capsys))
    assert [arm["segment"] for arm in answer["arms"]][1] == "another"
    for words, why in (
        ("0", "--segments 0: expected 2 whole numbers, one for each file"),
        ("0,x", "--segments 0,x: expected 2 whole numbers"),
        ("0,7", "'fast' has no segment 7; expected 0 to 1."),
    ):
        assert main(["compare", *map(str, pair), "--segments", words]) == 2
        assert why in capsys.readouterr().err


def test_files_of_one_name_are_told_apart(pair, tmp_path, capsys):
    other = tmp_path / "elsewhere" / "base.h5"
    other.parent.mkdir()
    shutil.copy(pair[1], other)
    answer = json.loads(printed(["compare", pair[0], other, "--json"], capsys))
    assert [arm["title"] for arm in answer["arms"]] == [str(pair[0]), str(other)]


def test_sessions_without_steady_steps_cannot_be_compared(pair, tmp_path, capsys):
    session = hdf5.load(pair[1])
    session.segments = []
    hdf5.save(session, pair[1])
    assert main(["compare", *map(str, pair)]) == 2
    assert capsys.readouterr().err == (
        "workbench compare: 'fast' has no segments; choose a session in which a model ran.\n"
    )
    plot = ["export", str(pair[1]), "--plot", "ecdf", "-o", str(tmp_path / "x.png")]
    assert main([*plot, "--json"]) == 2
    output = capsys.readouterr()
    assert "Cannot export ecdf" in output.err and json.loads(output.out)["reason"] == "mistake"
    assert main(["info", str(pair[1]), "--command"]) == 2
    assert "so there is nothing to run again" in capsys.readouterr().err


def test_a_chart_that_cannot_be_written_is_a_failure(pair, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_write, "write", full)
    for words in (["export", "--plot", "box", "-o", "a.csv"], ["report", "-o", "a.html"]):
        assert main([words[0], str(pair[0]), *words[1:-1], str(tmp_path / words[-1])]) == 1
        assert "No space left on device; choose another place" in capsys.readouterr().err


def is_png(content: bytes) -> bool:
    width, height = struct.unpack(">II", content[16:24])
    return content.startswith(b"\x89PNG\r\n\x1a\n") and width > 1000 and height > 500


def is_svg(content: bytes) -> bool:
    root = xml.etree.ElementTree.fromstring(content)
    return root.tag.endswith("}svg") and sum(1 for _ in root.iter()) > 50


def is_pdf(content: bytes) -> bool:
    return content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")


def is_csv(content: bytes) -> bool:
    rows = list(csv.reader(io.StringIO(content.decode())))
    return len(rows) > 100 and len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "csv"])
def test_an_exported_plot_really_is_what_its_suffix_says(suffix, pair, tmp_path, capsys):
    target = tmp_path / f"out.{suffix}"
    assert printed(["export", *pair, "--plot", "ecdf", "-o", target], capsys) == f"{target}\n"
    is_one = {"png": is_png, "svg": is_svg, "pdf": is_pdf, "csv": is_csv}
    content = target.read_bytes()
    assert is_one[suffix](content)
    if suffix in ("svg", "csv"):
        assert b"base" in content and b"fast" in content


def test_an_exported_table_is_csv_or_markdown_of_one_session(pair, tmp_path, capsys):
    table = ["export", pair[0], "--table", "segments", "-o"]
    printed([*table, tmp_path / "out.md"], capsys)
    title, _, heading, rule, row = (tmp_path / "out.md").read_text().splitlines()
    assert title == "### the same title"
    assert heading.count("|") == rule.count("|") == row.count("|") and set(rule) <= set("|-: ")
    printed([*table, tmp_path / "out.csv"], capsys)
    (row,) = csv.DictReader((tmp_path / "out.csv").open(newline=""))
    assert float(row["median (ms)"]) == pytest.approx(20, rel=0.02)
    assert (
        main(["export", *map(str, pair), "--table", "segments", "-o", str(tmp_path / "no.md")]) == 2
    )
    assert "needs one session, not 2; comparison and differences" in capsys.readouterr().err


def test_an_unknown_plot_is_answered_with_those_there_are(pair, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", str(pair[0]), "--plot", "pie", "-o", "x.png"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "invalid choice: 'pie'" in err
    assert all(name in err for name in PLOTS)


def test_what_is_no_journal_cannot_be_recovered(pair, tmp_path, capsys):
    assert main(["recover", str(tmp_path / "none.journal")]) == 2
    assert capsys.readouterr().err.endswith("none.journal: there is no such file\n")
    output = ["-o", str(tmp_path / "out.h5")]
    assert main(["recover", str(pair[0]), *output]) == 1
    assert f"{pair[0]}: no message in it; a journal has" in capsys.readouterr().err
    assert main(["recover", str(tmp_path), *output]) == 2
    assert "cannot be read: Is a directory" in capsys.readouterr().err
    assert not (tmp_path / "out.h5").exists()


def test_doctor_says_what_there_is_and_what_each_missing_thing_would_enable(ran, sent, capsys):
    sent(ran.catalogue)
    answer = json.loads(printed(["doctor", "--json"], capsys))
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["runner"]["state"] == "ok" and "families: hydra" in checks["runner"]["text"]
    assert checks["GPU"]["state"] == ("ok" if ran.catalogue.device == "cuda" else "missing")
    for check in checks.values():
        assert check["state"] in ("ok", "missing") and check["text"]
    assert answer["operators"] == ran.catalogue.operators
    sent(ran.catalogue)
    out = printed(["doctor"], capsys)
    for name, check in checks.items():
        assert any(line.split(maxsplit=1)[:1] == [check["state"]] and name in line
                   for line in out.splitlines())  # fmt: skip
    assert "operators on this device:\n" in out and "\n  rms_norm: " in out
    refusals = out.partition("not usable on this device:\n")[2].splitlines()
    assert len(refusals) == len({refusal.rpartition(" (")[0] for refusal in refusals}) > 0


def test_doctor_tells_the_machine_that_the_runner_is_on(ran, tmp_path, capsys):
    there = msgspec.structs.replace(
        ran.catalogue,
        environment={**ran.catalogue.environment, "host": "gpuhost", "xformers": "0.0.99"},
    )
    there.environment.pop("compiler", None)
    for name in [name for name in there.environment if name.startswith(SAMPLING)]:
        del there.environment[name]
    reasons = {"sm_clock": "psutil finds none", "sm_active": "a CPU has none"}
    there.environment |= {f"{SAMPLING}{name}": f"{ABSENT}{why}" for name, why in reasons.items()}
    (tmp_path / "line").write_bytes(protocol.encode(there))
    command = f"sh -c 'cat {tmp_path / 'line'}; exec cat >&2'"
    answer = json.loads(printed(["doctor", "--json", "--runner", command], capsys))
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["runner"]["text"].startswith("gpuhost, by `sh -c ")
    assert checks["xformers"]["text"].startswith("0.0.99: ")
    wanted = "no SM active: a CPU has none; no clock: psutil finds none"
    assert (checks["sensors"]["state"], checks["sensors"]["text"]) == ("missing", wanted)
    assert [check["state"] for name, check in checks.items() if "compiler" in name] == ["missing"]


@pytest.mark.parametrize("environment", [{}, {"cpu_cores": "many"}])
def test_doctor_reports_a_runner_that_knows_nothing_about_its_machine(
    environment, ran, sent, capsys
):
    sent(msgspec.structs.replace(ran.catalogue, environment=environment))
    assert re.search(r"^ok +CPU +unknown, unknown cores$", printed(["doctor"], capsys), re.M)


def test_doctor_is_1_where_the_runner_cannot_start(sent, capsys):
    sent(then="sys.exit('no module named torch')")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "failed   runner" in out and "no module named torch" in out


def test_after_two_dashes_a_file_may_begin_with_a_dash(pair, tmp_path, monkeypatch, capsys):
    shutil.copy(pair[0], tmp_path / "-a.h5")
    monkeypatch.chdir(tmp_path)
    title = hdf5.load(pair[0]).title
    assert json.loads(printed(["info", "--json", "--", "-a.h5"], capsys))["title"] == title
    answer = json.loads(printed(["compare", "--json", "--", "-a.h5", pair[1]], capsys))
    assert answer["arms"][0]["title"] == "-a"


@pytest.mark.parametrize(
    "line", [["info", "-a.h5"], ["run", "-o", "-a.h5"], ["export", "-a.h5", "--list"]]
)
def test_a_file_taken_for_an_option_is_named_with_the_way_to_write_it(line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 2
    assert "write ./-a.h5" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["-q", "-1,2.5", "-orun.h5", "--toggle=a.b", "--none.h5"])
def test_other_unknown_words_are_not_called_files(word, capsys):
    with pytest.raises(SystemExit):
        main(["info", word])
    assert "./" not in capsys.readouterr().err


def test_a_session_without_content_is_told_in_words(tmp_path, capsys):
    hdf5.save(Session(title="nothing yet"), path := tmp_path / "empty.h5")
    text = printed(["info", path], capsys)
    assert "nothing ran in this session" in text and "|" not in text
    assert "no tables, because nothing ran" in printed(["export", path, "--list"], capsys)


def test_a_compressed_trace_is_named_without_both_suffixes():
    paths = [Path("a/step.json.gz"), Path("b/run.h5"), Path("c/run.h5")]
    assert names(paths) == ["step", "b/run.h5", "c/run.h5"]
