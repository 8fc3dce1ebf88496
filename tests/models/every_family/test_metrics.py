"""Blocks' measurements reach the model's metrics, their losses its loss, in every mode."""

import torch

from models import BlockOutput, LanguageModel
from models.layers.basic import Linear


class Measuring(torch.nn.Module):
    """Block with a loss of its own that measures the mean of each half of its input."""

    measures = {"halves": 2}  # noqa: RUF012

    def __init__(self, dim):
        super().__init__()
        self.linear = Linear(dim, dim)

    def forward(self, x_BSE, state=None, position=None):
        y_BSE = x_BSE + self.linear(x_BSE)
        halves = x_BSE.float().unflatten(-1, (2, -1)).mean((0, 1, 3))
        return BlockOutput(y_BSE, y_BSE.float().square().mean(), {"halves": halves})


class Plain(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = Linear(dim, dim)

    def forward(self, x_BSE, state=None, position=None):
        return x_BSE + self.linear(x_BSE)


def measuring_model():
    torch.manual_seed(0)
    model = LanguageModel(
        rows=256,
        dim=8,
        blocks=[Measuring(8), Plain(8), Measuring(8)],
        max_sequence=32,
        norm_eps=1e-5,
        tie_embeddings=True,
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def step(model, loss, tokens_BS, targets_BS):
    model.zero_grad()
    value = loss(tokens_BS, targets_BS)
    value.backward()
    return value.detach(), [p.grad.clone() for p in model.parameters()]


def test_each_measuring_block_is_a_row_and_the_losses_add_up(tokens_BS, targets_BS):
    model = measuring_model()
    assert model.metrics()["halves"].shape == (2, 2)
    assert not model.metrics()["halves"].any()
    with torch.no_grad():
        loss = model.loss(tokens_BS, targets_BS)
        logits = model(tokens_BS).flatten(0, 1)
        x_BSE, auxiliary = model.embedding(tokens_BS), 0
        rows = []
        for block in model.blocks:
            if isinstance(block, Measuring):
                rows.append(block(x_BSE).measured["halves"])
                auxiliary = auxiliary + block(x_BSE).loss
                x_BSE = block(x_BSE).x
            else:
                x_BSE = block(x_BSE)
    expected = torch.nn.functional.cross_entropy(logits, targets_BS.flatten()) + auxiliary
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.metrics()["halves"], torch.stack(rows))


def test_checkpointed_and_compiled_whole_they_are_the_same(tokens_BS, targets_BS):
    model = measuring_model()
    expected = step(model, model.loss, tokens_BS, targets_BS)
    measured = model.metrics()["halves"].clone()
    for mode in ("none", "selective", "full"):
        model.set_checkpointing(mode)
        for compiled in (False, True):
            model.metrics()["halves"].zero_()
            torch._dynamo.reset()
            loss = (
                torch.compile(model.loss, backend="aot_eager", fullgraph=True)
                if compiled
                else model.loss
            )
            torch.testing.assert_close(step(model, loss, tokens_BS, targets_BS), expected)
            torch.testing.assert_close(model.metrics()["halves"], measured)


def test_metrics_are_no_weights_and_stay_in_fp32():
    model = measuring_model().to(torch.bfloat16)
    assert not any("metric" in name for name in model.weights())
    assert model.metrics()["halves"].dtype == torch.float32
