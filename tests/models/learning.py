"""Plain training of a model, for the tests of what it learns."""

from __future__ import annotations

import torch


def trained(model, batches, rate):
    """Return the loss of the last batch, after an AdamW step for each; frozen weights stay."""
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(own, rate, betas=(0.9, 0.95))
    for inputs_BS, targets_BS in batches:
        optimizer.zero_grad()
        loss = model.loss(inputs_BS, targets_BS)
        loss.backward()
        optimizer.step()
    return loss.item()
