"""Digest of a model's mathematics: equal for two configurations that build the same model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from sessions.model import Scalar
from sessions.verdicts.work import MODEL_DIGEST, difference
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import all_toggles
from workbench.runner.user_models import hf_model


def model_digest(situation: Situation) -> str:
    """Return a digest of the model's fields as the toggles change them; "" for a user's file.

    Fields that leave the mathematics alone do not count, and neither do those that have the default
    of their class: the digest stays the same when a later version adds a field.
    """
    if situation.is_own_model:
        source = situation.config.source
        return _digest_of(hf_model.fields_of(source)) if hf_model.is_hf(source) else ""
    alone = {
        name
        for toggle in all_toggles().values()
        if toggle.configure is not None and toggle.same_mathematics
        for option in toggle.options
        if option != toggle.off
        for name in toggle.configure(option, situation.config)
    }
    fields = {
        field.name: value
        for field in dataclasses.fields(situation.config)
        if field.name not in alone
        and (value := getattr(situation.config, field.name)) != field.default
    }
    return _digest_of([situation.family.name, fields])


def _digest_of(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_facts(situation: Situation) -> dict[str, Scalar]:
    """Return the digest as the fact of a segment."""
    digest = model_digest(situation)
    return {MODEL_DIGEST: digest} if digest else {}


def difference_of_situations(first: Situation, second: Situation) -> tuple[str, list[str]]:
    """Return ``work.difference`` of two configurations that are resolved."""
    digests = model_digest(first), model_digest(second)
    return difference(first.configuration, second.configuration, digests)
