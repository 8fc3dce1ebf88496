"""Timing of an operator: wrong, failing or late implementations are reported and not timed."""

import dataclasses
import inspect
import math
import time
import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import OPS, Case, Implementation
from kernels.core.check import Exact
from kernels.measure import rounds as rounds_module
from kernels.measure import timing
from kernels.measure.bench import bench
from kernels.measure.peers import PEERS
from kernels.measure.rounds import CALLS, ROUNDS, alternate

CPU = torch.device("cpu")


def with_implementations(**calls):
    """Return SwiGLU with these implementations, and without its compiled reference."""
    op = OPS["swiglu"]
    implementations = {name: Implementation(call) for name, call in calls.items()}
    return dataclasses.replace(op, implementations=implementations, large_reference=op.reference)


def timed(op, **options):
    """Return the last version of each row."""
    return list({id(row): row for row in bench(op, CPU, torch.float32, **options)}.values())


PAIRS = [(op, name) for op, peers in PEERS.items() for name in peers]


@pytest.mark.parametrize(("op", "peer"), PAIRS, ids=lambda name: name)
def test_a_peer_takes_all_inputs_of_its_operator(op, peer):
    inputs = OPS[op].inputs(OPS[op].cases[0], CPU, torch.float32, 0)
    inspect.signature(PEERS[op][peer]).bind(*inputs.values())


def test_each_direction_of_a_right_implementation_is_timed():
    forward, backward = timed(with_implementations(plain=OPS["swiglu"].reference))
    assert (forward.direction, backward.direction) == ("forward", "backward")
    for row in (forward, backward):
        assert (row.op, row.impl, row.dtype, row.problem) == ("swiglu", "plain", "float32", "")
        assert sorted(set(row.rounds)) == list(range(1, ROUNDS + 1)) and min(row.times_us) > 0
        assert len(row.times_us) == len(row.rounds) == len(row.began_s)
        assert row.floor_us > 0 and row.first_s > 0 and 0 <= row.error <= 1
    assert backward.work.flops > forward.work.flops > 0


def test_forward_passes_are_timed_before_any_graph_of_a_backward_pass_takes_memory():
    plain = OPS["swiglu"].reference
    op = with_implementations(first=plain, other=plain)
    seen = [(row.impl, row.direction, bool(row.times_us)) for row in bench(op, CPU, torch.float32)]
    order = [("forward", False), ("forward", True), ("backward", False), ("backward", True)]
    assert seen == [(impl, way, timed) for way, timed in order for impl in ("first", "other")]


def test_gradients_of_the_forward_pass_are_timed_together_with_it():
    op = with_implementations(plain=OPS["swiglu"].reference)
    forward, both = timed(dataclasses.replace(op, gradients_in_forward=True))
    assert (forward.direction, both.direction) == ("forward", "forward and backward")
    _, backward = timed(op)
    assert both.work.flops == forward.work.flops + backward.work.flops
    assert OPS["linear_cross_entropy"].gradients_in_forward


def test_a_wrong_implementation_is_told_and_not_timed():
    rows = timed(with_implementations(wrong=lambda gate, up: gate * up))
    (row,) = rows
    assert row.problem.startswith("wrong: output 0: largest error") and not row.times_us
    assert row.error > 1


def test_a_failing_implementation_is_told_and_the_next_is_timed():
    def fails(gate, up):
        raise ValueError("no such gate")

    first, *rest = timed(with_implementations(fails=fails, plain=OPS["swiglu"].reference))
    assert "no such gate" in first.problem and not first.times_us and math.isnan(first.error)
    assert [row.impl for row in rest] == ["plain", "plain"]


def test_one_that_writes_into_its_inputs_spoils_nothing_for_the_next():
    def greedy(gate, up):
        result = OPS["swiglu"].reference(gate, up)
        gate.detach().fill_(7.0)
        return result

    plain = OPS["swiglu"].reference
    rows = timed(with_implementations(before=plain, greedy=greedy, plain=plain))
    there = [row for row in rows if row.impl != "greedy"]
    assert [row.problem for row in there] == [""] * 4
    assert all(row.times_us for row in there), "its backward pass finds what it has saved, unspoilt"


@pytest.mark.parametrize("ends_early", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_bench_leaves_settings_and_results_of_torch_compile_as_they_were(ends_early):
    from torch._functorch import config

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    graphs, before = [], config.save_config()
    double = torch.compile(lambda x: 2 * x, backend=backend)
    double(torch.ones(3))
    rows = bench(OPS["rms_norm"], CPU, torch.float32)
    next(rows)
    if ends_early:
        rows.close()
    else:
        list(rows)
    double(torch.ones(3))
    assert len(graphs) == 1, "it was compiled again"
    assert config.save_config() == before


def test_what_is_not_begun_by_the_deadline_says_so():
    rows = timed(with_implementations(plain=OPS["swiglu"].reference), deadline=0.0)
    assert [row.problem for row in rows] == ["not timed: out of time"]


# Rounds


def order_of(results):
    """Return which contender ran in each block, in the order in which they ran."""
    began = {(t, number) for number, timings in enumerate(results) for t in timings.began_s}
    return [number for _, number in sorted(began)]


def test_contenders_take_turns_in_random_order_and_each_has_a_block_in_every_round():
    results = alternate([lambda: None] * 3, "cpu", describe_failure=str)
    order = order_of(results)
    rounds = [tuple(order[start : start + 3]) for start in range(0, len(order), 3)]
    assert len(rounds) == ROUNDS and all(sorted(timings) == [0, 1, 2] for timings in rounds)
    assert len(set(rounds)) > 2
    again = alternate([lambda: None] * 3, "cpu", describe_failure=str)
    assert order_of(again) == order, "the same seed draws the same order"
    for timings in results:
        assert timings.rounds == [number for number in range(1, ROUNDS + 1) for _ in range(CALLS)]


@pytest.mark.parametrize(("budget_s", "rounds"), [(0.4, 1), (1.0, 1), (7.5, 7), (60.0, 60)])
def test_rounds_end_within_the_budget_and_go_on_for_as_long_as_it_lasts(
    monkeypatch, budget_s, rounds
):
    now_s = [100.0]

    def call():
        now_s[0] += 0.1

    clock = types.SimpleNamespace(monotonic=lambda: now_s[0], perf_counter=lambda: now_s[0])
    monkeypatch.setattr(rounds_module, "time", clock)
    results = alternate([call] * 2, "cpu", describe_failure=str, budget_s=budget_s)
    assert [timings.rounds[-1] for timings in results] == [rounds] * 2, "each takes a second"


def test_a_block_of_slow_calls_has_one():
    (slow,) = alternate([lambda: time.sleep(0.02)], "cpu", describe_failure=str, budget_s=1e-3)
    assert len(slow.us) == 1


def test_rounds_end_once_enough_is_known_and_whoever_asks_may_raise():
    def enough(timed):
        return timed[0].rounds[-1] == 3

    results = alternate(
        [lambda: None] * 2, "cpu", describe_failure=str, enough=enough, budget_s=60.0
    )
    assert [timings.rounds[-1] for timings in results] == [3, 3]

    def cancelled(timed):
        raise KeyError("cancelled")

    with pytest.raises(KeyError, match="cancelled"):
        alternate([lambda: None], "cpu", describe_failure=str, enough=cancelled)


def test_a_contender_that_fails_in_a_round_keeps_its_calls_and_leaves_the_others_alone():
    calls = []

    def fails():
        calls.append(None)
        if len(calls) > 20:
            raise ValueError("no more")

    results = alternate([fails, lambda: None], "cpu", describe_failure=lambda: "failed: no more")
    assert results[0].problem == "failed: no more" and 0 < len(results[0].us) < 20
    assert results[1].problem == "" and results[1].rounds[-1] == ROUNDS


def test_before_every_block_the_inputs_are_as_they_were():
    seen, state = [], [0]

    def spoils():
        state[0] += 1
        seen.append(state[0])

    alternate([spoils], "cpu", describe_failure=str, before=lambda: state.__setitem__(0, 0))
    assert max(seen) <= CALLS


def test_no_round_begins_after_the_deadline():
    results = alternate([lambda: None], "cpu", describe_failure=str, deadline=time.monotonic() - 1)
    assert (results[0].us, results[0].problem) == ([], "not timed: out of time")


class Products(TorchDispatchMode):
    """Record the dtypes in which matrices are multiplied."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm"):
            self.dtypes.add(args[-1].dtype)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.large_reference is None])
def test_what_is_compiled_multiplies_in_the_dtype_of_the_torch_implementation(name):
    op = OPS[name]
    inputs = op.inputs(op.cases[0], CPU, torch.bfloat16, 0)
    seen = []
    for call in (op.plain or op.reference, op.implementations["torch"]):
        with Products() as products, torch.no_grad():
            call(*op.with_copies(tuple(inputs.values())))
        seen.append(products.dtypes)
    assert seen[0] == seen[1]


class _SimulatedGpu:
    """Clocks of a host that launches work and of a GPU that executes it later, in microseconds."""

    EVICTION_US = 250.0

    def __init__(self, monkeypatch):
        self.host = self.gpu = 0.0
        self.calls = 0
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = gpu.gpu = max(gpu.host, gpu.gpu)

            def query(self):
                return gpu.host >= self.at

            def elapsed_time(self, end):
                return (end.at - self.at) / 1e3

        class Evictor:
            def bitwise_not_(self):
                gpu.launch(2.0, gpu.EVICTION_US)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(timing, "_evictor", lambda device: Evictor())

    def synchronize(self):
        self.host = max(self.host, self.gpu)

    def launch(self, host_us, gpu_us):
        self.host += host_us
        self.gpu = max(self.host, self.gpu) + gpu_us

    def call(self, host_us, gpu_us, delayed=(), delay_us=0.0):
        """Return a call of two kernels; the host is delayed in calls with these numbers."""

        def call():
            self.calls += 1
            self.launch(host_us / 2, gpu_us / 2)
            self.host += delay_us * (self.calls in delayed)
            self.launch(host_us / 2, gpu_us / 2)

        return call


@pytest.mark.parametrize("host_us", [5.0, 240.0, 260.0, 900.0, 3900.0])
def test_launches_that_take_the_host_long_are_not_counted_as_time_of_the_gpu(host_us, monkeypatch):
    call = _SimulatedGpu(monkeypatch).call(host_us, 20.0)
    results = alternate([call], "cuda", describe_failure=str)
    assert timing.gpu_us(call) == pytest.approx(20.0)
    assert results[0].us == pytest.approx([20.0] * len(results[0].us))


def test_all_calls_have_equally_many_evictions_before_them(monkeypatch):
    gpu = _SimulatedGpu(monkeypatch)
    seen = []
    real = rounds_module.times_us

    def times_us(call, repeats, device, evictions):
        seen.append((call, evictions))
        return real(call, repeats, device, evictions)

    monkeypatch.setattr(rounds_module, "times_us", times_us)
    calls = [gpu.call(host_us, 20.0) for host_us in (5.0, 900.0)]
    alternate(calls, "cuda", describe_failure=str)
    timed = seen[len(calls) :]  # the first call of each only gives the size of its blocks
    assert {call for call, _ in timed} == set(calls)
    assert {evictions for _, evictions in timed} == {timing.evictions_to_hide(calls[1], "cuda")}


def test_a_call_during_which_the_host_was_delayed_is_repeated(monkeypatch):
    gpu = _SimulatedGpu(monkeypatch)
    call = gpu.call(5.0, 20.0, delayed={2, 7}, delay_us=50_000.0)
    assert timing.times_us(call, 10, "cuda") == pytest.approx([20.0] * 10)


def test_a_call_that_waits_for_the_gpu_itself_is_timed_after_a_limited_number_of_repeats(
    monkeypatch,
):
    gpu = _SimulatedGpu(monkeypatch)

    def waits():
        gpu.call(5.0, 20.0)()
        gpu.synchronize()

    evictions = timing.evictions_to_hide(waits, "cuda")
    assert (evictions, gpu.calls) == (timing.MOST_EVICTIONS, 4)
    assert len(timing.times_us(waits, 10, "cuda", evictions)) == 10
    assert gpu.calls == 4 + 20


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if op.plain))
def test_what_the_benchmark_compiles_for_comparison_is_right(name):
    op = OPS[name]
    for case in (case for case in op.cases if not case.bench):
        exact = Exact(op, op.inputs(case, CPU, torch.float32, 0))
        assert not [str(c) for c in exact.compare(op.plain) if not c.right], case.name


@pytest.mark.parametrize("window", [None, 7, 500])
def test_attention_to_the_filled_part_of_a_cache_is_a_peer_of_decoding(window):
    op = OPS["attention"]
    sizes = {"batch": 2, "length": 1, "heads": 4, "kv_heads": 2, "dim": 16, "keys": 64}
    case = Case("", sizes | {"kv_length": 50, "causal": True, "window": window})
    inputs = tuple(op.inputs(case, CPU, torch.float32, 0).values())
    peer = PEERS["attention"]["sdpa, decoding"]
    torch.testing.assert_close(peer(*inputs), op.reference(*inputs))
    *rest, _ = inputs
    assert peer(*rest, None) is NotImplemented
