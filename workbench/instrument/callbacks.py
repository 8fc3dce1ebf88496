"""Callbacks for the trainers of ``transformers`` and Lightning: exact steps, and what they log.

Evaluation and checkpoints between two steps are no step's time. Outside of
``workbench run -- COMMAND`` the callbacks record nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .recording import Recording

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def transformers_callback() -> Any:
    """Return a ``transformers.TrainerCallback`` for ``Trainer(callbacks=[...])``."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class WorkbenchCallback(base):
        """Ends a step where the trainer does, and records the numbers that it logs."""

        def on_train_begin(self, *arguments: Any, **keywords: Any) -> None:
            """Let the trainer mark the steps."""
            _begin()

        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            """End a step."""
            _mark()

        def on_evaluate(self, *arguments: Any, **keywords: Any) -> None:
            """Leave the evaluation out."""
            _begin()

        def on_save(self, *arguments: Any, **keywords: Any) -> None:
            """Leave the checkpoint out."""
            _begin()

        def on_train_end(self, *arguments: Any, **keywords: Any) -> None:
            """Exclude the time that follows."""
            _pause()

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **keywords: Any
        ) -> None:
            """Record the loss and the other numbers."""
            _log(logs or {})

    return WorkbenchCallback()


def lightning_callback() -> Any:
    """Return a Lightning ``Callback`` for ``Trainer(callbacks=[...])``."""
    loaded = [name for name in _LIGHTNING if name in sys.modules]
    base: Any = importlib.import_module((loaded or list(_LIGHTNING))[0]).Callback

    class WorkbenchCallback(base):
        """Ends a step where the trainer does, and records the numbers that it logs.

        With accumulated gradients a step has several batches, up to the update of the weights. One
        that a validation interrupts is not recorded.
        """

        def __init__(self) -> None:
            super().__init__()
            self._updates = 0
            self._is_within_step = False  # some of its batches are done, and others follow
            self._is_interrupted = False

        def on_train_epoch_start(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
            """Let the trainer mark the steps."""
            self._updates = trainer.global_step
            self._is_within_step = self._is_interrupted = False
            _begin()

        def on_train_batch_end(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
            """End a step if the trainer updated weights; record what the module logged."""
            has_ended = trainer.accumulate_grad_batches == 1 or trainer.global_step != self._updates
            self._updates, self._is_within_step = trainer.global_step, not has_ended
            if has_ended and self._is_interrupted:
                _begin()
                self._is_interrupted = False
            elif has_ended:
                _mark()
            _log(trainer.callback_metrics)

        def on_validation_end(self, *arguments: Any, **keywords: Any) -> None:
            """Leave the validation out, and the step that it interrupted."""
            self._is_interrupted = self._is_within_step
            _begin()

        def on_train_epoch_end(self, *arguments: Any, **keywords: Any) -> None:
            """Exclude the time that follows."""
            _pause()

    return WorkbenchCallback()


def _begin() -> None:
    if Recording.current is not None:
        Recording.current.mark_explicitly()
        Recording.current.begin_step()


def _mark() -> None:
    if Recording.current is not None:
        Recording.current.mark_step()


def _pause() -> None:
    if Recording.current is not None:
        Recording.current.pause()


def _log(values: Any) -> None:
    """Record numbers by name; reading one of a GPU waits for it, as logging it does."""
    if Recording.current is not None:
        Recording.current.log(values)
