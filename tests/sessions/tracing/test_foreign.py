"""Traces and reports of other programs: read in a child process, attributed, or refused."""

from __future__ import annotations

import gzip
import json
import sys
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import Written

from sessions.errors import Lacking, SessionError
from sessions.storage import foreign as files
from sessions.storage.content import cleaned
from sessions.studies import breakdown, timeline
from sessions.tracing import foreign, nsight


def recorded(module_category: str = "python_function") -> Written:
    """Two steps as torch.profiler records a program with ``with_modules``."""
    made = Written()
    prefix = "nn.Module: " if module_category == "python_function" else ""
    for number in range(2):
        at = 1000.0 * number
        made.mark(f"ProfilerStep#{number + 3}", at, at + 900)
        made.span(f"{prefix}Net_0", at + 10, at + 400, category=module_category)
        made.span(f"{prefix}Linear_0", at + 20, at + 200, category=module_category)
        made.op("aten::mm", at + 30, at + 100)
        made.kernel("nvjet_gemm", at + 40, 120.0)
        made.op("aten::gelu", at + 250, at + 300)
        made.kernel("gelu_kernel", at + 260, 30.0)
    return made


def saved(tmp_path, made: Written, name: str = "other.json.gz"):
    text = json.dumps({
        "deviceProperties": [{"name": "NVIDIA H200", "totalGlobalMem": 1}],
        "traceEvents": made.events,
    })  # fmt: skip
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize("category", ["python_function", "user_annotation"])
def test_a_foreign_trace_is_a_profile_by_step_module_and_kernel(tmp_path, category):
    session = files.load(saved(tmp_path, recorded(category)))
    assert session.title == "other" and session.environment["device"] == "NVIDIA H200"
    (study,) = breakdown.profiles(session)
    assert study.request["steps"] == 2
    assert breakdown.by(study, "name")["nvjet_gemm"] == (1.0, 120.0)
    assert breakdown.totals(study)["Net_0.Linear_0"] == 120.0
    assert breakdown.totals(study)["Net_0"] == 150.0
    assert study.facts["busy_us"] == 150.0
    assert "its profiler lengthens times" in breakdown.words(study)[-1]
    data = timeline.of(study)
    assert [lane.title for lane in data.lanes()][-2:] == ["Stream 7", "GPU idle"]


def test_a_trace_without_steps_is_one_step_and_an_array_of_events_is_a_trace(tmp_path):
    made = recorded()
    made.events = [event for event in made.events if "ProfilerStep" not in event["name"]]
    path = tmp_path / "array.json"
    path.write_text(json.dumps(made.events))
    (study,) = breakdown.profiles(files.load(path))
    assert study.request["steps"] == 1
    assert breakdown.by(study, "name")["nvjet_gemm"] == (2.0, 240.0)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"", "not a Chrome trace"),
        ("a.json", b'{"traceEvents": [', "not a Chrome trace"),
        ("a.json", b'{"a": 1}', "not a Kineto trace"),
        ("a.json", b'{"traceEvents": [{"name": 5}]}', "not a Kineto trace"),
        ("a.json", b'{"traceEvents": []}', "no operators"),
        ("a.json", b"[" * 100_000, "not a Kineto trace"),
        ("a.json.gz", b"\x1f\x8b garbage", "compressed text is damaged"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with path.open("rb") as stream, pytest.raises(SessionError, match=words):
        foreign.read(stream, "a")


def test_the_child_process_refuses_for_the_same_reason(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"traceEvents": []}')
    with pytest.raises(SessionError, match=r"Cannot open .*a\.json: it has no operators"):
        files.load(path)
    with pytest.raises(SessionError, match="no such file"):
        files.load(tmp_path / "b.json")


def test_a_compressed_text_of_any_length_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    with path.open("rb") as stream, pytest.raises(SessionError, match="longer than 1 MiB"):
        foreign.read(stream, "bomb")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
FIELDS = ("ph", "cat", "name", "tid", "ts", "dur", "args")


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(FIELDS), JUNK), max_size=6))
def test_hostile_events_are_read_or_refused_and_nothing_else(tmp_path, changes):
    made = recorded()
    for number, field, value in changes:
        event = made.events[number % len(made.events)]
        if field == "args":
            event["args"] = {**event["args"], "correlation": value, "Sequence number": value}
        else:
            event[field] = value
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"traceEvents": made.events}))
    with path.open("rb") as stream:
        try:
            session = foreign.read(stream, "hostile")
            cleaned(session)
        except SessionError:
            return
    assert breakdown.profiles(session)


class FakeMetric:
    def __init__(self, value):
        self.value = value

    def as_double(self):
        return self.value


class FakeKernel:
    def __init__(self, name, **metrics):
        self._name, self.metrics = name, metrics

    def name(self):
        return self._name

    def metric_by_name(self, name):
        return FakeMetric(self.metrics[name]) if name in self.metrics else None


def test_a_report_of_nsight_compute_becomes_a_table_of_kernels(tmp_path, monkeypatch):
    sm, memory = nsight._UTILIZATIONS
    kernels = [
        FakeKernel("gemm", **{nsight._TIME_NS: 2000.0, sm: 80.0, memory: 30.0}),
        FakeKernel("gemm", **{nsight._TIME_NS: 4000.0, sm: 60.0, memory: 30.0}),
        FakeKernel("relu", **{nsight._TIME_NS: 1000.0}),
        FakeKernel("unmeasured"),
    ]
    module = types.SimpleNamespace(load_report=lambda path: [kernels])
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    session = cleaned(nsight.read(tmp_path / "a.ncu-rep", "a"))
    (study,) = breakdown.profiles(session)
    assert breakdown.by(study, "name") == {"gemm": (2.0, 6.0), "relu": (1.0, 1.0)}
    assert breakdown.shares_by_kernel(study)["gemm"] == pytest.approx((1.6 + 2.4) / 6)


def test_without_nvidias_package_a_report_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"x")
    with pytest.raises(Lacking, match="pip install ncu-report"):
        files.load(path)
