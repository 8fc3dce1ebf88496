"""Properties of every family: seeds, batches, learning a task, saved state, refusals."""

import copy
import dataclasses
import io
import pickle

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernels import using
from models import FAMILIES, ConfigurationError

DECODERS = [name for name, family in FAMILIES.items() if "decode" in family.workloads]
ROUTED = {"ccgqa": True, "mixture_of_depths": True, "mixture_of_recursions": True}
FORMS = {name: (name, {}) for name in FAMILIES} | {
    "hydra, routed": ("hydra", ROUTED),
    "mamba2, attention-free": ("mamba2", {"attention_every": 0}),
    "mahia, experts": ("mahia", {"use_moe": True}),
    "moe, noisy": ("moe", {"gating": "noisy_topk"}),
}


def form(name, **fields):
    family, more = FORMS[name]
    return FAMILIES[family], FAMILIES[family].configure("tiny", {"n_layers": 2} | more | fields)


def batch_of(family, config, batch, sequence, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if family.draw is not None:
        return family.draw(config, batch, sequence, generator)
    tokens_BS = torch.randint(0, 256, (batch, sequence + 1), generator=generator)
    return (tokens_BS[:, :-1],), (tokens_BS[:, 1:],)


def trained(model, batches, rate):
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95))
    for inputs, targets in batches:
        optimizer.zero_grad()
        model.loss(*inputs, *targets).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", FORMS)
def test_a_seed_decides_what_training_gives(name):
    family, config = form(name)
    batches = [batch_of(family, config, 2, 12, seed) for seed in (1, 2)]
    weights = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)  # of the noise, where there is some
        model = trained(family.materialise(config, seed=seed), batches, 1e-2)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_that_is_cast_is_the_one_that_was_made_in_that_dtype(name, dtype):
    family, config = form(name)
    (inputs, targets), runs = batch_of(family, config, 2, 12), []
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    for model in (family.materialise(config).to(dtype), family.materialise(config, dtype=dtype)):
        torch.manual_seed(0)  # of the noise, where there is some
        steps = [model.loss(*inputs, *targets) for _ in range(2)]  # of which one may adapt
        steps[1].backward()
        assert {x.dtype for x in model.metrics().values()} <= {torch.float32}
        runs.append([*steps, *(p.grad for p in model.parameters()), *model.metrics().values()])
    assert all(torch.equal(first, other) for first, other in zip(*runs, strict=True))


def loaded(model, family, config):
    """Load the same weights into another model, as from a file: they carry no marks."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = family.build(config)
    other.load_state_dict(torch.load(file), assign=True)
    return other


@pytest.mark.parametrize("name", FORMS)
def test_what_shall_not_decay_is_marked_in_copies_and_in_what_is_loaded(name):
    family, config = form(name)
    model = family.materialise(config)

    def spared(of):
        return {n for n, p in of.named_parameters() if getattr(p, "no_weight_decay", False)}

    if name in ("mamba2", "mahia", "hydra, routed"):
        assert spared(model)
    copied = copy.deepcopy(model)
    copies = [copied, pickle.loads(pickle.dumps(copied)), loaded(model, family, config)]
    for other in (*copies, family.share(config, model.weights()), family.build(config, "cpu")):
        assert spared(other) == spared(model)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FORMS)
def test_the_structure_alone_tells_shapes_and_flops_of_a_step(name):
    family, config = form(name)
    inputs, targets = batch_of(family, config, 2, 12)
    counted = []
    for model in (family.build(config), family.materialise(config)):
        batch = [x.to(model.weights()["embedding.weight"].device) for x in (*inputs, *targets)]
        with FlopCounterMode(display=False) as counter, using(attention="manual"):
            model.loss(*batch).backward()
        assert all(p.grad.shape == p.shape for p in model.parameters())
        counted.append(counter.get_total_flops())
    if "experts" in name or "moe" in name:  # to how many of these tokens go is not known there
        assert counted[0] >= counted[1] > 0
    else:
        assert counted[0] == counted[1] > 0


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *batch):
        return self.model.loss(*batch)


@pytest.mark.parametrize("name", FORMS)
def test_torch_func_gives_the_gradients_of_autograd_and_writes_to_nothing(name):
    family, config = form(name)
    model = family.materialise(config).eval()  # where no noise is drawn
    inputs, targets = batch_of(family, config, 2, 12)
    weights = {f"model.{n}": p.detach() for n, p in model.named_parameters()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}

    def loss(weights):
        return torch.func.functional_call(Loss(model), weights, (*inputs, *targets))

    gradients = torch.func.grad(loss)(weights)
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    model.loss(*inputs, *targets).backward()
    for n, p in model.named_parameters():
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(
            gradients[f"model.{n}"], expected, msg=lambda m, n=n: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_torch_s_default_dtype_changes_neither_weights_nor_what_is_computed(name, default):
    family, config = form(name)
    (inputs, targets), runs = batch_of(family, config, 2, 12), []
    for dtype in (torch.float32, default):
        torch.set_default_dtype(dtype)
        try:
            model = family.materialise(config, seed=5)
            torch.manual_seed(0)  # of the noise, where there is some
            steps = [model.loss(*inputs, *targets) for _ in range(2)]  # of which one may adapt
            steps[1].backward()
        finally:
            torch.set_default_dtype(torch.float32)
        runs.append([*steps, *(p.grad for p in model.parameters()), *model.metrics().values()])
    assert all(torch.equal(first, other) for first, other in zip(*runs, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_a_sequence_does_not_see_the_others_of_its_batch(name):
    family, config = form(name)
    model = family.materialise(config, dtype=torch.float64, seed=3).eval()
    if name == "adaattn":
        model.freeze()  # else ranks follow from all that was seen
    ((tokens_BS,), _) = batch_of(family, config, 3, 14)
    together = model(tokens_BS)
    for i in range(3):
        torch.testing.assert_close(model(tokens_BS[i : i + 1])[0], together[i])


WORD = 4  # tokens
# MAHIA-X is no language model: its task is learned in tests/models/mahia/test_mahia.py.
COPIERS = {  # learning rate, sizes
    "hydra": (1e-2, {"dim": 64, "n_heads": 4}),
    "mamba2": (1e-2, {"dim": 48, "d_state": 16, "attention_every": 2}),
    "mamba2, attention-free": (1e-2, {"dim": 48, "d_state": 16}),
    "adaattn": (5e-3, {"dim": 64, "n_heads": 4}),
    "moe": (1e-2, {}),
    "moe, noisy": (5e-3, {}),
    "hydra, routed": (5e-3, {"dim": 64, "depth_capacity": 0.5, "recursions": 2}),
}


def copied(generator):
    """Draw a word of eight letters, a mark, and the same again: chance is 1/8 past the mark."""
    word = torch.randint(0, 8, (32, WORD), generator=generator)
    sequence = torch.cat([word, torch.full((32, 1), 8), word], 1)
    return (sequence[:, :-1],), (sequence[:, 1:],)


@pytest.mark.parametrize("name", COPIERS)
def test_training_on_the_copy_task_learns_to_copy(name):
    rate, fields = COPIERS[name]
    family, config = form(name, **fields)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(5)  # of the noise, where there is some
    model = family.materialise(config, seed=1)
    trained(model, (copied(generator) for _ in range(220)), rate)
    ((inputs_BS,), (targets_BS,)) = copied(generator)
    assert share_right(model, inputs_BS, targets_BS, WORD) > 0.9


@torch.no_grad()
def share_right(model, inputs_BS, targets_BS, first):
    """Return the fraction of right tokens from ``first`` on, in the decoding mode."""
    found_BS = model.eval()(inputs_BS).argmax(-1)
    return (found_BS[:, first:] == targets_BS[:, first:]).float().mean()


DELAY = 2  # tokens
SMALL = {"dim": 32, "n_heads": 2, "n_kv_heads": 2}
DEPTHS = {"mixture_of_depths": True, "depth_capacity": 0.5}
RECURSIONS = {"mixture_of_recursions": True, "recursions": 2, "n_layers": 1}
DELAYERS = {
    "depths": ("hydra", SMALL | DEPTHS),
    "recursions": ("hydra", SMALL | RECURSIONS | {"recursion_alpha": 1.0}),
    "recursions by token that share keys": (
        "hydra",
        SMALL | RECURSIONS | {"recursion_routing": "token", "recursion_kv": "share"},
    ),
    "experts behind noise": ("moe", {"gating": "noisy_topk"}),
}


def delayed(generator, batch=16):
    """Draw random letters of eight, each to be repeated two tokens later: chance is 1/8."""
    letters_BS = torch.randint(0, 8, (batch, 12), generator=generator)
    asked_BS = torch.cat([letters_BS[:, :DELAY], letters_BS[:, :-DELAY]], 1)
    return (letters_BS,), (asked_BS,)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DELAYERS)
def test_what_is_routed_is_soon_taught_to_repeat_the_token_before_the_last(name):
    family = FAMILIES[DELAYERS[name][0]]
    config = family.configure("tiny", {"n_layers": 2} | DELAYERS[name][1])
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(5)  # of the noise
    model = family.materialise(config, seed=3)
    trained(model, (delayed(generator) for _ in range(60)), 1e-2)
    ((inputs_BS,), (targets_BS,)) = delayed(generator, batch=64)
    assert share_right(model, inputs_BS, targets_BS, DELAY) > 0.9
    for metric, values in model.metrics().items():
        if metric in ("depth_share", "recursion_share"):  # some tokens were left out, and not all
            assert ((values > 0.02) & (values < 0.98)).all(), metric


@pytest.mark.parametrize("name", [n for n in DECODERS if n != "adaattn"])
def test_the_cache_shrinks_with_the_key_and_value_heads(name):
    more = {"attention_every": 1} if name == "mamba2" else {}
    counted = {}
    for heads in (1, 2, 4):
        family, config = form(name, n_kv_heads=heads, **more)
        cache = family.materialise(config).new_cache(2, 32)
        counted[heads] = sum(
            layer.kv.keys.nbytes if more else layer.keys.nbytes for layer in cache.layers
        )
    assert counted[4] == 2 * counted[2] == 4 * counted[1] > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_no_size_below_its_least_comes_to_be_built(name, monkeypatch):
    family = FAMILIES[name]
    monkeypatch.setattr(torch.nn.Module, "__init__", None)  # nothing is even begun
    for field in family.fields():
        if field.kind not in (int, float) or field.choices:
            continue
        for value in (-1, field.minimum - 1):
            with pytest.raises(ConfigurationError) as caught:
                family.configure("tiny", {field.name: value})
            assert str(caught.value).startswith(f"{name}: {field.name} = ")
            with pytest.raises(ConfigurationError):
                family.build(dataclasses.replace(family.presets["tiny"], **{field.name: value}))
    for batch, sequence in ((0, 8), (1, 0), (-1, 8), (1, -8)):
        step = {"workload": "forward", "batch": batch, "sequence": sequence}
        with pytest.raises(ConfigurationError, match="must be at least 1"):
            family.check_memory(family.presets["tiny"], memory_bytes=10**9, **step)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_field_cannot_be_is_one_sentence_before_anything_is_built(name, monkeypatch):
    family = FAMILIES[name]
    monkeypatch.setattr(torch.nn.Module, "__init__", None)  # nothing is even begun
    for field in family.fields():
        wrong = [None, [1], float("nan"), "neither a number nor a choice"]
        if field.maximum is not None:
            wrong += [field.maximum + 1, 10 * abs(field.maximum) + 10]
        if field.choices and field.kind is not str:
            wrong.append(max(field.choices) + 1)
        for value in wrong:
            with pytest.raises(ConfigurationError) as caught:
                family.configure("tiny", {field.name: value})
            sentence = str(caught.value)
            assert sentence.startswith(f"{name}: {field.name} = ") and "\n" not in sentence


PRECISIONS = {
    "fp32": (torch.float32, None),
    "fp16": (torch.float16, None),
    "bf16": (torch.bfloat16, None),
    "amp fp16": (torch.float32, torch.float16),
    "amp bf16": (torch.float32, torch.bfloat16),
}


@pytest.mark.parametrize("name", [*FAMILIES, "hydra, routed", "mahia, experts"])
def test_a_training_step_runs_in_every_precision_and_its_loss_is_near_that_of_fp32(name):
    family, config = form(name)
    inputs, targets = batch_of(family, config, 2, 12)
    exact = None
    for precision, (dtype, autocast) in PRECISIONS.items():
        model = family.materialise(config, dtype=dtype, seed=3)
        given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        torch.manual_seed(5)  # of the noise, where there is some
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = model.loss(*given, *targets)
        loss.backward()
        assert loss.dtype == torch.float32
        exact = exact or loss.item()
        assert loss.item() == pytest.approx(exact, rel=0.02), precision
        for parameter in model.parameters():
            assert parameter.grad.isfinite().all(), precision


@pytest.mark.parametrize("name", FAMILIES)
def test_a_training_step_writes_every_metric_that_the_family_names(name):
    written = set()
    for item in (item for item, (family, _) in FORMS.items() if family == name):
        family, config = form(item)
        model = family.materialise(config, seed=3)
        before = {metric: values.fill_(-7.0) for metric, values in model.metrics().items()}
        inputs, targets = batch_of(family, config, 2, 12)
        model.loss(*inputs, *targets).backward()
        for metric, values in before.items():
            assert values is model.metrics()[metric] and values.dtype == torch.float32
            assert values.isfinite().all() and (values != -7.0).all(), metric
            written.add(metric)
    assert written == {metric.name for metric in FAMILIES[name].metrics}
