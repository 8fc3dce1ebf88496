"""The mode of a user's model, training or evaluation, without other effects on its weights."""

from __future__ import annotations

from torch import Tensor, nn

from workbench.runner.instruments.memory import free_bytes
from workbench.runner.user_models.addresses import record_addresses
from workbench.runner.user_models.backups import Backups


def set_mode(model: nn.Module, mode: bool) -> None:
    """Set the mode of every module, by its own ``train()``, which may raise.

    Classes and objects may override it: to keep a layer in evaluation mode, or to merge weights
    (LoRA). Weights belong to all configurations, and a second one would merge them again. So if
    weights change, they and the attributes of the modules are restored, and only the modes remain.
    """
    modules = list(model.modules())
    if all(getattr(m.train, "__func__", None) is nn.Module.train for m in modules[1:]):
        nn.Module.train(model, mode)
        return
    # On the device: models of transformers override ``train()`` and are large.
    backups = Backups(free_bytes(next(model.parameters()).device))
    copies = {weight: backups.copy(weight) for weight in model.parameters()}
    restore_addresses = record_addresses(copies)
    attributes = [(module, dict(vars(module))) for module in modules]
    registered = [(module._parameters, dict(module._parameters)) for module in modules]
    try:
        nn.Module.train(model, mode)
    except Exception:  # noqa: BLE001 - it may raise anything
        for module in modules:
            module.training = mode
    same_parameters = all(
        [*map(id, now.values())] == [*map(id, before.values())] for now, before in registered
    )
    same_weights = all(_is_same(weight, copy) for weight, copy in copies.items())
    restore_addresses()
    if same_parameters and same_weights:
        return
    for weight, copy in copies.items():
        weight.data.copy_(copy)
    for module, before in attributes:
        training = module.training
        vars(module).clear()
        vars(module).update(before, training=training)
    for now, before in registered:
        now.clear()
        now.update(before)


def _is_same(weight: Tensor, copy: Tensor) -> bool:
    """Return True if numbers are as in the copy; those of quantized layers are NaN."""
    copy = copy.to(weight.device)
    return weight.shape == copy.shape and bool(((weight == copy) | (weight != weight)).all())
