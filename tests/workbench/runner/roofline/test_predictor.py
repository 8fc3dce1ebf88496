"""The count of a step on imagined tensors, and its predictions."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
import torch

from kernels.measure import timing
from models import FAMILIES
from sessions.ceilings import describe
from sessions.model import Ceilings, Configuration
from workbench import protocol
from workbench.runner.building.matrix_rate import matrix_dtype
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext, counted_step, make_predictor
from workbench.runner.interfaces import StepRecord
from workbench.runner.roofline import counter
from workbench.runner.roofline import predict as predictors
from workbench.runner.roofline.ceilings import Roof

CPU = torch.device("cpu")
SMALL = {"dim": 64, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1}
ROOF = Ceilings(
    device="imagined", driver="", torch="", created=0.0, bytes_per_s=4e12,
    flops_per_s={"float32": 5e13, "bfloat16": 7e14},
)  # fmt: skip


def configured(workload="train", batch=8, **toggles):
    toggles = {**({"adamw": "fused"} if workload == "train" else {}), **toggles}
    settings = {"batch": batch, "sequence": 128}
    return Configuration(
        family="hydra", preset="tiny", model=SMALL, workload=workload, settings=settings,
        toggles=toggles,
    )  # fmt: skip


def predictor_at(ceilings):
    roof = SimpleNamespace(device=CPU, ceilings=ceilings)
    return make_predictor(roof)


@pytest.fixture(scope="module")
def predictor():
    return predictor_at(ROOF)


def test_a_toggle_that_changes_no_work_is_predicted_to_change_nothing(predictor):
    assert predictor.of(configured(), configured(rope_cache="shared")).ratio == 1.0
    assert predictor.of(configured(), configured()).ratio == 1.0


def test_narrower_numbers_move_fewer_bytes_and_are_predicted_to_be_faster(predictor):
    assert predictor.of(configured(), configured(precision="bf16")).ratio < 0.9


def test_checkpointing_computes_more_the_more_blocks_it_recomputes(predictor):
    half, full = (
        predictor.of(configured(), configured(checkpointing=option)).ratio
        for option in ("selective", "full")
    )
    assert 1.0 < half < full < 1.5


def test_an_attention_that_writes_its_scores_is_predicted_to_be_slower(predictor):
    assert predictor.of(configured(), configured(attention="manual")).ratio > 1.0


def test_a_fused_kernel_is_predicted_to_be_faster_than_its_plain_operators(monkeypatch):
    situation = resolve(configured("forward"), CPU)
    plain = predictor_at(ROOF).least(situation).us
    monkeypatch.setattr(counter, "PLAIN", frozenset())  # as if every operator ran as one kernel
    fused = predictor_at(ROOF).least(situation).us
    assert 0 < fused < plain


def test_a_checkpointed_block_is_computed_forward_twice_and_backward_once(predictor):
    """Its last operator is of the library: what it saved is computed again within its node."""

    def flops(workload, **toggles):
        toggles |= {"adamw": "fused"} if workload == "train" else {}
        configuration = Configuration(
            family="moe", preset="tiny", workload=workload, toggles=toggles,
            settings={"batch": 2, "sequence": 64},
        )  # fmt: skip
        rows, _ = predictor.rows(resolve(configuration, CPU))
        return {row.name: row.flops for row in rows}

    forward, every = flops("forward"), flops("train", checkpointing="none")
    again = flops("train", checkpointing="full")
    config = FAMILIES["moe"].presets["tiny"]
    forward["matrix product"] -= 2 * 2 * 64 * config.input_dim * config.rows  # the head
    for name in ("attention", "moe_experts", "moe_gating", "rope", "matrix product"):
        assert again[name] == every[name] + forward[name], name


def attention_of(predictor, workload, toggles=None, **settings):
    configuration = configured(workload, **toggles or {})
    configuration = msgspec.structs.replace(configuration, settings={"batch": 2} | settings)
    rows, _ = predictor.rows(resolve(configuration, CPU))
    return next(row for row in rows if row.name == "attention")


def test_an_attention_whose_output_a_checkpoint_saves_is_not_computed_again(predictor):
    none, operators, full = (
        attention_of(predictor, "train", {"checkpointing": option}, sequence=64).flops
        for option in ("none", "operators", "full")
    )
    assert none == operators < full


def test_a_prompt_in_pieces_attends_to_as_many_keys_as_at_once(predictor):
    at_once, pieces = (
        attention_of(predictor, "prefill", sequence=64, chunk=chunk).flops for chunk in (0, 16)
    )
    assert pieces == at_once


@pytest.mark.parametrize("workload", ["decode", "generate"])
def test_a_new_token_attends_to_the_keys_that_are_there_on_average(predictor, workload):
    row = attention_of(predictor, workload, sequence=32, new_tokens=64)
    config = resolve(configured(workload), CPU).config
    of_key = 2 * config.n_layers * config.q_dim * 4  # FLOPs
    assert row.flops == pytest.approx(of_key * (32 + 65 / 2), rel=0.01)


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_the_counted_products_are_the_familys_own_flops(predictor, workload):
    situation = resolve(configured(workload), CPU)
    counted = sum(row.flops for row in predictor.rows(situation)[0]
                  if row.name in ("matrix product", "attention"))  # fmt: skip
    family = FAMILIES["hydra"]
    stated = family.flops(situation.config, 8, 128, training=workload == "train")
    assert counted == pytest.approx(stated, rel=0.001)


@pytest.mark.parametrize(
    "base, other, why",
    [
        ({}, {"compile": "default"}, "fuses is unknown before it has compiled"),
        ({"compile": "default"}, {"compile": "default", "rope_cache": "shared"}, "compiled"),
        ({}, {"precision": "tf32"}, "cannot be used"),
    ],
)
def test_what_cannot_be_known_beforehand_has_a_reason_and_no_number(predictor, base, other, why):
    made = predictor.of(configured(**base), configured(**other))
    assert made.ratio is None and why in made.text


def test_a_rate_that_was_not_measured_is_named_and_not_replaced():
    no_bf16 = Ceilings(**{**{f: getattr(ROOF, f) for f in ROOF.__struct_fields__},
                          "flops_per_s": {"float32": 5e13}})  # fmt: skip
    made = predictor_at(no_bf16).of(configured("forward"), configured("forward", precision="bf16"))
    assert made.ratio is None and "matrix rate of bfloat16 is not among" in made.text


@pytest.mark.parametrize("rate, faster", [(4e14, True), (5e11, False)])
def test_the_int8_rate_decides_what_quantized_layers_are_predicted_to_take(rate, faster):
    rates = {**ROOF.flops_per_s, "int8": rate}
    roof = msgspec.structs.replace(ROOF, flops_per_s=rates, bytes_per_s=1e15)  # bound by products
    made = predictor_at(roof).of(
        configured("forward"), configured("forward", quantization="int8_dynamic")
    )
    assert made.ratio is not None and (made.ratio < 1) == faster, made


def test_a_rate_that_the_device_lacks_has_its_reason_and_one_not_yet_measured_the_remedy():
    options = configured("forward"), configured("forward", quantization="int8_dynamic")
    for lacking, expected in (({"int8": "there are no units"}, "ceilings: there are no units"),
                          ({}, "run workbench ceilings --measure")):  # fmt: skip
        roof = msgspec.structs.replace(ROOF, lacking=lacking)
        made = predictor_at(roof).of(*options)
        assert made.ratio is None and "matrix rate of int8 is not among" in made.text
        assert expected in made.text


def test_no_remedy_is_named_for_a_rate_that_is_never_measured(predictor):
    """Bases of adaptive attention are refreshed in FP64."""
    base = Configuration(
        family="adaattn", preset="tiny", workload="forward", settings={"batch": 2, "sequence": 32}
    )
    other = msgspec.structs.replace(base, toggles={"precision": "bf16"})
    text = predictor.of(base, other).text
    assert "matrix rate of float64" in text and "--measure" not in text


@pytest.mark.parametrize(
    "options, dtype",
    [
        ({"quantization": "int8_dynamic"}, "int8"),
        ({"quantization": "int8_weight_only"}, "float32"),
        ({"quantization": "fp8_tensor"}, "float32"),  # the reference: the CPU has no such units
        ({"precision": "bf16", "quantization": "fp8_row"}, "bfloat16"),
    ],
)
def test_utilization_is_of_the_units_that_linear_layers_multiply_in(options, dtype):
    assert matrix_dtype(resolve(configured("forward", **options), CPU)) == dtype


def test_measuring_takes_8_bit_rates_where_they_are_and_keeps_reasons_elsewhere(monkeypatch):
    monkeypatch.setattr(timing, "matrix_rate", lambda where, dtype: 1e12)
    monkeypatch.setattr(timing, "copy_rate", lambda where: 1e10)
    messages = []
    roof = Roof(SimpleNamespace(send=messages.append), CPU, lambda *_: "")
    measured = roof.measure()
    assert set(measured.flops_per_s) == {"float32", "bfloat16", "int8"}
    assert "needs a CUDA GPU" in measured.lacking["float8"]
    roof.measured = None
    roof.at_start()
    assert roof.measured == measured and messages[-1].source == "kept"


def test_what_was_measured_beside_others_is_used_and_told_and_not_kept(monkeypatch):
    rates = {"matrix_rate": 1e12, "copy_rate": 1e10}
    for name in rates:
        monkeypatch.setattr(timing, name, lambda *_, name=name: rates[name])
    disturbance, messages = [""], []
    roof = Roof(SimpleNamespace(send=messages.append), CPU, lambda *_: disturbance[0])
    quiet = roof.measure()
    rates["matrix_rate"], disturbance[0] = 3e11, "python (process 7) used 25 % of the CPU"
    beside = roof.measure()
    assert roof.ceilings == beside and beside.flops_per_s["float32"] == 3e11
    assert "may be too low, because python (process 7) used 25 % of the CPU" in describe(beside)
    assert "not stored, because python (process 7) used 25 % of the CPU" in messages[-1].why
    roof.at_start()
    assert roof.measured == quiet and messages[-1].why == ""


def test_segments_from_before_the_ceilings_hear_of_them_once_they_are_measured(monkeypatch):
    monkeypatch.setattr(timing, "matrix_rate", lambda where, dtype: 1e12)
    monkeypatch.setattr(timing, "copy_rate", lambda where: 1e10)
    messages = []
    context = RunnerContext(SimpleNamespace(send=messages.append), CPU)
    told_of = {"ledger": {}, "record": StepRecord(), "divided": None}
    wide, narrow = configured("forward"), configured("forward", precision="bf16")
    arms = {
        segment: SimpleNamespace(**told_of, situation=resolve(configuration, CPU))
        for segment, configuration in ((0, wide), (3, narrow))
    }
    for segment, arm in arms.items():
        assert context.facts_of(arm, segment) == {}
    context.roof.measure()
    context.roof.measure()
    facts = {
        message.segment: message.ledger
        for message in messages
        if isinstance(message, protocol.Facts)
    }
    assert {segment: ledger["matrix_dtype"] for segment, ledger in facts.items()} == {
        0: "float32",
        3: "bfloat16",
    }
    for segment, arm in arms.items():
        assert facts[segment]["matrix_flops_per_s"] == 1e12
        assert context.facts_of(arm, segment).keys() == facts[segment].keys()
    assert sum(isinstance(message, protocol.Facts) for message in messages) == 2


@pytest.mark.parametrize("share, sentence", [(24.0, ""), (60.0, "others used 60 % of the CPU")])
def test_others_disturb_from_the_share_on_that_a_cpu_always_has(share, sentence):
    context = RunnerContext(SimpleNamespace(send=lambda message: None), CPU)
    context.samples.extend((taken_ns, {"others": share}) for taken_ns in (10, 20, 30))
    context.samples.append((99, {"others": 100.0 - share}))
    assert context.disturbance(5, 35) == sentence


def test_counting_runs_nothing_and_leaves_no_imagined_tensor_behind(predictor):
    import kernels

    predictor.least(resolve(configured(), CPU))
    real = kernels.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-6)
    assert type(real) is torch.Tensor and real.sum().item() == pytest.approx(16, rel=1e-4)


def test_the_bytes_of_a_file_are_not_needed_to_count_the_work(predictor, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"some text " * 50)
    of_file = msgspec.structs.replace(configured(), data=str(text))
    assert predictor.least(resolve(of_file, CPU)) == predictor.least(resolve(configured(), CPU))


def test_an_optimizer_that_compiles_its_step_is_counted(monkeypatch):
    """The AdamW of torchao in 8 bits does."""
    step = torch.optim.AdamW.step

    def compiling(self, closure=None):
        torch.compile(lambda x: x + 1, fullgraph=True, backend="eager")(torch.ones(2))
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", compiling)
    assert counted_step(resolve(configured(), CPU)).calls


def test_a_step_that_cannot_be_followed_is_no_prediction_and_no_failure():
    def breaks(situation):
        raise RuntimeError("no such thing\nsecond line")

    situation = resolve(configured(), CPU)
    counted = predictors._counted(situation, breaks)
    assert counted == ("its step cannot be traced without running it (RuntimeError: no such thing)")


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_an_operator_whose_work_depends_on_values_leaves_the_others_known(workload, monkeypatch):
    """The ranks of adaptive attention are in a tensor."""
    monkeypatch.setattr(counter, "PLAIN", frozenset())  # as where kernels run
    predictor = predictor_at(ROOF)
    configuration = Configuration(
        family="adaattn", preset="tiny", workload=workload, settings={"batch": 2, "sequence": 32},
        toggles={"adamw": "fused"} if workload == "train" else {},
    )  # fmt: skip
    rows, why = predictor.rows(resolve(configuration, CPU))
    names = {row.name for row in rows}
    assert "work of adaptive_attention depends on values" in why
    assert "adaptive_attention" not in names and {"rms_norm", "matrix product", "swiglu"} <= names
    assert ("optimizer" in names) == (workload == "train")
    shared = {**configuration.toggles, "rope_cache": "shared"}
    other = msgspec.structs.replace(configuration, toggles=shared)
    assert "depends on values" in predictor.of(configuration, other).text


@pytest.mark.parametrize(
    ("family", "known"),
    [
        ("hydra", {"matrix product", "attention", "optimizer"}),
        ("mamba2", {"attention", "optimizer"}),  # its scan is several operators of torch here
    ],
)
def test_a_compiled_step_has_the_attainable_time_of_what_is_never_fused(predictor, family, known):
    eager = Configuration(
        family=family, preset="tiny", workload="train", toggles={"adamw": "fused"},
        settings={"batch": 2, "sequence": 32},
    )  # fmt: skip
    compiled = msgspec.structs.replace(eager, toggles={"adamw": "fused", "compile": "default"})
    before, _ = predictor.rows(resolve(eager, CPU))
    rows, why = predictor.rows(resolve(compiled, CPU))
    assert {row.name for row in rows} == known and "fuses is unknown" in why
    of_eager = {row.name: row for row in before}
    assert all(row == of_eager[row.name] for row in rows)
    assert predictor.of(compiled, eager).ratio is None


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", ["loop", "foreach", "fused"])
def test_amp_in_fp16_has_attainable_times_whatever_the_optimizer(option):
    """It is offered on GPUs only, but its loss scaler works on a CPU as well."""
    rates = {**ROOF.flops_per_s, "float16": 7e14}
    predictor = predictor_at(msgspec.structs.replace(ROOF, flops_per_s=rates))
    rows, why = predictor.rows(resolve(configured(precision="amp_fp16", adamw=option), CPU))
    assert not why and {"optimizer", "attention", "matrix product"} <= {row.name for row in rows}
    plain, _ = predictor.rows(resolve(configured(adamw="loop"), CPU))
    update, expected = (row.bytes for row in (*rows, *plain) if row.name == "optimizer")
    if option == "fused":  # it also writes the gradients, divided by the scale of the loss
        expected *= 8 / 7
    assert update == pytest.approx(expected, rel=0.001)
