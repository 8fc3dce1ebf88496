"""One set of moments for every way to step AdamW, and no decay of what a model has marked."""

import pytest
import torch
from torch import nn

from models import FAMILIES
from workbench.runner.training.trainer import LEARNING_RATE, WEIGHT_DECAY, Weights

PLAIN = {"fused": False, "foreach": False, "capturable": False}
FOREACH = PLAIN | {"foreach": True}
FUSED = PLAIN | {"fused": True}


@pytest.fixture
def weights():
    marked = nn.Parameter(torch.ones(2))
    marked.no_weight_decay = True
    return Weights({"plain": nn.Parameter(torch.ones(3)), "marked": marked})


def groups(weights, options=PLAIN):
    optimizer = weights.trainer(options, scales_loss=False).optimizer
    return {group["weight_decay"]: group["params"] for group in optimizer.param_groups}


def test_what_is_marked_is_in_a_group_without_decay(weights):
    parameters = weights.parameters
    by_decay = groups(weights)
    assert [id(p) for p in by_decay[WEIGHT_DECAY]] == [id(parameters["plain"])]
    assert [id(p) for p in by_decay[0.0]] == [id(parameters["marked"])]


@pytest.mark.parametrize("options", [PLAIN, FOREACH, FUSED], ids=["loop", "foreach", "fused"])
def test_a_step_without_gradient_shrinks_what_decays_alone(weights, options):
    trainer = weights.trainer(options, scales_loss=False)
    trainer.update(sum((p * 0).sum() for p in weights.parameters.values()))
    shrunk = torch.full((3,), 1 - LEARNING_RATE * WEIGHT_DECAY)
    torch.testing.assert_close(weights.parameters["plain"].data, shrunk)
    assert torch.equal(weights.parameters["marked"].data, torch.ones(2))


def test_one_group_stands_where_nothing_is_marked():
    weights = Weights({"a": nn.Parameter(torch.ones(3))})
    assert list(groups(weights)) == [WEIGHT_DECAY]


def test_every_way_to_step_goes_on_from_the_same_moments(weights):
    parameters = list(weights.parameters.values())
    trainers = [weights.trainer(o, scales_loss=False) for o in (PLAIN, FOREACH, FUSED)]
    assert all(torch.equal(p, torch.ones_like(p)) for p in parameters)  # making them moved nothing
    for parameter in parameters:
        moments = {t.optimizer.state[parameter]["exp_avg"].data_ptr() for t in trainers}
        assert len(moments) == 1
    trainers[0].update(sum(p.sum() for p in parameters))
    for trainer in trainers:
        for parameter in parameters:
            assert trainer.optimizer.state[parameter]["exp_avg"].abs().min() > 0
        assert {group["lr"] for group in trainer.optimizer.param_groups} == {LEARNING_RATE}


def marked(model):
    return {name for name, p in model.named_parameters() if getattr(p, "no_weight_decay", False)}


def test_the_marks_of_a_model_survive_every_way_to_make_it():
    family = FAMILIES["mamba2"]
    config = family.presets["tiny"]
    first = family.materialise(config, dtype=torch.bfloat16)
    names = {n for n, _ in first.named_parameters() if n.endswith(("A_log", "dt_bias", ".D"))}
    assert len(names) == 3 * config.n_layers
    built = family.build(config, "cpu")
    for model in (first, family.share(config, first.weights()), built, family.build(config)):
        assert marked(model) == names
    assert len(groups(Weights(first.weights()))[0.0]) == len(names)


@pytest.mark.parametrize("scales_loss", [False, True])
def test_a_loss_that_lives_on_keeps_nothing_of_the_step(weights, scales_loss):
    def accumulator():
        return parameter.sum().grad_fn.next_functions[0][0]

    trainer = weights.trainer(PLAIN, scales_loss=scales_loss)
    parameter = weights.parameters["marked"]
    loss = sum(p.sum() for p in weights.parameters.values())
    accumulator().metadata["of"] = "this step"
    assert accumulator().metadata  # as long as the graph lives it is the same node
    trainer.update(loss)
    assert not loss.requires_grad
    assert not accumulator().metadata


def test_a_loss_that_is_a_view_trains_too(weights):
    losses = torch.stack([p.sum() for p in weights.parameters.values()])
    weights.trainer(PLAIN, scales_loss=False).update(losses[0])
    assert (weights.parameters["plain"] < 1).all()


@pytest.mark.parametrize("first", [FUSED, PLAIN], ids=["fused first", "loop first"])
def test_a_way_to_step_counts_on_where_another_left_off(weights, first):
    """Counts that lie apart, as those on the device and those on the host do."""
    second = PLAIN if first is FUSED else FUSED
    parameters = list(weights.parameters.values())
    before, after = (weights.trainer(o, scales_loss=False) for o in (first, second))
    for state in after.optimizer.state.values():
        state["step"] = state["step"].clone()
    weights.sync_step_counts(before.optimizer)
    for _ in range(3):
        before.update(sum(p.sum() for p in parameters))
    weights.sync_step_counts(after.optimizer)
    after.update(sum(p.sum() for p in parameters))
    counts = {float(after.optimizer.state[p]["step"]) for p in parameters}
    weights.sync_step_counts(before.optimizer)
    counts |= {float(before.optimizer.state[p]["step"]) for p in parameters}
    assert len(counts) == 1 and counts.pop() >= 4
    for parameter in parameters:
        assert after.optimizer.state[parameter]["step"].device.type == "cpu"


def test_an_alias_counts_on_where_another_way_to_step_left_off(weights):
    before, same = (weights.trainer(o, scales_loss=False) for o in (PLAIN, FUSED))
    for state in same.optimizer.state.values():
        state["step"] = state["step"].clone()  # apart, as counts on the device are
    alias = weights.alias()
    trainer = alias.trainer(FUSED, scales_loss=False)
    weights.sync_step_counts(before.optimizer)
    for _ in range(3):
        before.update(sum(p.sum() for p in weights.parameters.values()))
    expected = float(before.optimizer.state[weights.parameters["plain"]]["step"])
    alias.sync_step_counts(trainer.optimizer)
    counts = {float(state["step"]) for state in trainer.optimizer.state.values()}
    assert counts == {expected} and expected >= 3


@pytest.mark.gpu
@pytest.mark.parametrize("first", [FUSED, PLAIN], ids=["fused first", "loop first"])
def test_counts_lie_on_the_gpu_where_it_reads_them_and_nowhere_else(first):
    weights = Weights({"a": nn.Parameter(torch.ones(3, device="cuda"))})
    second = PLAIN if first is FUSED else FUSED
    trainers = {id(o): weights.trainer(o, scales_loss=False) for o in (first, second)}
    (parameter,) = weights.parameters.values()
    for options in (first, second, first):
        optimizer = trainers[id(options)].optimizer
        weights.sync_step_counts(optimizer)
        trainers[id(options)].update(parameter.sum())
        state = optimizer.state[parameter]["step"]
        assert state.is_cuda is options["fused"]
    assert float(state) == 4, "with the one in which the moments were made"


def test_after_a_step_that_failed_the_next_gradients_are_unscaled(weights):
    trainer = weights.trainer(PLAIN, scales_loss=True)
    (parameter, *_) = weights.parameters.values()
    trainer.scaler.scale(parameter.sum()).backward()
    trainer.scaler.unscale_(trainer.optimizer)  # and here the optimizer lacks memory
    weights.drop_gradients()
    seen = []
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.append(parameter.grad.clone()))
    trainer.update(sum(p.sum() for p in weights.parameters.values()))
    assert torch.equal(seen[0], torch.ones(3))
