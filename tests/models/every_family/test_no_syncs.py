"""No forward pass of any family makes the host wait, shown without a GPU.

The model is put on a GPU that does not exist: tensors have shapes and devices there, but no values,
so that every operation that needs a value (``.item()``, ``nonzero``, ``unique``) fails by itself.
The others are watched for: masks as an index, copies between host and device. Backward passes need
a real device; tests/models/test_*_gpu.py has those.
"""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import kernels
from models import FAMILIES, Model, sample
from models.layers.basic import Linear
from workbench.runner.profiling.probes.syncs import SyncMode

GPU = torch.device("cuda", 0)


class HostSync(Exception):  # noqa: N818
    """An operation makes the host wait for the device."""


def watch() -> SyncMode:
    """Raise ``HostSync`` where a value is needed, at mask indices, and at device copies."""

    def seen(what: str) -> None:
        raise HostSync(what)

    return SyncMode(seen, GPU)


def to_gpu(model: nn.Module) -> None:
    """Give a model on the meta device tensors on the GPU that does not exist."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=GPU)
            setattr(module, name, nn.Parameter(empty))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=GPU))


def inputs_of(family, config, batch, sequence):
    """Return inputs and targets of one step, on the CPU."""
    if family.draw is not None:
        return family.draw(config, batch, sequence, torch.Generator().manual_seed(0))
    tokens_BS = torch.zeros(batch, sequence, dtype=torch.int64)
    return (tokens_BS,), (tokens_BS,)


def run_without_gpu(family, config, workload, change=lambda model: None):
    """Run one step's forward pass; raise at the first operation that would wait."""
    model = family.build(config)
    change(model)
    inputs, targets = inputs_of(family, config, 2, 16)
    with FakeTensorMode() as mode, torch.no_grad():
        to_gpu(model)
        inputs, targets = (
            tuple(mode.from_tensor(x).to(GPU) for x in tensors) for tensors in (inputs, targets)
        )
        model.train(workload == "train")
        caches = workload in ("prefill", "decode", "generate")
        extra = {"cache": model.new_cache(2, 16)} if caches else {}
        if workload in ("decode", "generate"):
            inputs = (inputs[0][:, :1],)
            extra["position"] = torch.zeros((), dtype=torch.int64, device=GPU)
        if workload == "prefill":
            extra["last_only"] = True
        # No GPU is queried for its attention: all are alike in this. Fourier mixing by a matrix
        # moves that to the device once, before any step that is captured.
        with kernels.using(all="torch", attention="manual", fourier_mix="torch"), watch():
            if workload == "train":
                with torch.enable_grad():
                    return model.loss(*inputs, *targets)
            result = model(*inputs, **extra)
            if workload == "generate":
                uniform_B1 = torch.empty((2, 1), device=GPU)
                return sample(result[:, -1], 0.8, 0.9, uniform_B1=uniform_B1)
            return result


FORMS = [
    pytest.param(family, config, workload, id=f"{family.name}-{workload}")
    for family in FAMILIES.values()
    for config in [next(iter(family.presets.values()))]
    for workload in family.workloads
] + [
    pytest.param(family, family.configure("tiny", fields), workload, id=f"{name}-{workload}")
    for name, fields in {
        "moe, noisy": {"gating": "noisy_topk", "capacity_factor": 1.0},
        "moe, dense": {"gating": "dense", "num_shared_experts": 1},
        "mahia, experts": {"use_moe": True},
        "hydra, routed": {
            "ccgqa": True, "mixture_of_depths": True, "mixture_of_recursions": True,
            "n_layers": 2, "recursions": 2,
        },
        "hydra, routed by token": {
            "mixture_of_recursions": True, "recursion_routing": "token", "recursion_kv": "share",
            "n_layers": 1, "recursions": 2,
        },
    }.items()
    for family in [FAMILIES[name.partition(",")[0]]]
    for workload in family.workloads
]  # fmt: skip


@pytest.mark.sample(15)
@pytest.mark.parametrize(("family", "config", "workload"), FORMS)
def test_no_forward_pass_waits_for_the_device(family, config, workload):
    assert run_without_gpu(family, config, workload).device == GPU


class Waiting(Model):
    """Model whose forward pass is given."""

    def __init__(self, body):
        super().__init__()
        self.linear, self.body = Linear(8, 8), body

    def forward(self, x):
        return self.body(self.linear(x))

    def loss(self, x, target):
        return self(x).sum() + target.sum()


def looked_at(x):
    return x * 2 if x[0, 0] > 0.5 else x


def assigned(x, values):
    x = x.clone()
    x[x > 0] = values
    return x


BAD = {
    "item": lambda x: x * x.sum().item(),
    "a value is looked at": looked_at,
    "tolist": lambda x: x + sum(x[0].tolist()),
    "a mask as an index": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "values assigned through a mask": lambda x: assigned(x, torch.ones(3, device=GPU)),
    "a result for the host": lambda x: x.cpu().sum(),
    "a list for the device": lambda x: x + torch.tensor([1.0] * 8, device=x.device),
}
GOOD = {
    "one number assigned through a mask": lambda x: assigned(x, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "numbers as an index": lambda x: x[x.argsort(-1)[:, 0] % 2],
    "topk": lambda x: x.topk(2).values,
}


def step_of(body):
    with FakeTensorMode(), torch.no_grad():
        model = Waiting(body)
        to_gpu(model)
        x = torch.empty(4, 8, device=GPU)
        with watch():
            return model(x)


@pytest.mark.parametrize("name", BAD)
def test_a_forward_pass_that_waits_is_found(name):
    with pytest.raises(HostSync):
        step_of(BAD[name])


@pytest.mark.parametrize("name", GOOD)
def test_what_does_not_wait_passes(name):
    assert step_of(GOOD[name]).device == GPU


@pytest.mark.parametrize("name", ["item", "a mask as an index"])
def test_a_block_that_waits_is_found_inside_of_a_family(name):
    family = FAMILIES["moe"]

    def change(model):
        model.blocks[1].mixture_norm.register_forward_hook(
            lambda module, inputs, x: x + BAD[name](x).sum()
        )

    with pytest.raises(HostSync):
        run_without_gpu(family, family.presets["tiny"], "forward", change)
