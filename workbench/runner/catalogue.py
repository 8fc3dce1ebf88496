"""The runner's first message: all families, workloads, toggles and operators of this process."""

from __future__ import annotations

import torch

import kernels
from models import ConfigField, Family
from sessions.verdicts import work
from workbench import plugins, protocol
from workbench.runner.config import presets
from workbench.runner.config.values import default_preset, families
from workbench.runner.environment import device_name, environment
from workbench.runner.toggles import Stage, all_toggles
from workbench.runner.user_models import user_model
from workbench.runner.workloads import all_workloads


def catalogue(device: torch.device, created: float) -> protocol.Catalogue:
    """Return what the window builds its forms from; ``created`` is the Unix time at t_s = 0."""
    facts = environment(device) | _further_toggles()
    work.learn_toggles(facts)  # the verdicts of this process need it too
    return protocol.Catalogue(
        version=protocol.VERSION,
        created=created,
        device=device.type,
        device_title=device_name(device),
        environment=facts,
        families=[_family(family, device) for family in families().values()],
        workloads=[workload.info() for workload in all_workloads().values()],
        # Last those that change the model: most of them are another family's.
        toggles=[
            toggle.info(device)
            for toggle in sorted(all_toggles().values(), key=lambda t: t.stage == Stage.MODEL)
        ],
        operators={name: str(status) for name, status in kernels.status(device.type).items()},
        presets=presets.all_presets(),
        plugins=plugins.loaded(),  # last: what precedes loads them
    )


def _further_toggles() -> dict[str, str]:
    """Return the fact that names the toggles of other models that sessions do not know."""
    toggles = all_toggles().values()
    names = [t.name for t in toggles if t.makes_other_model and t.name not in work.MODEL_TOGGLES]
    return {work.FURTHER_TOGGLES: ", ".join(names)} if names else {}


def _family(family: Family, device: torch.device) -> protocol.FamilyInfo:
    return protocol.FamilyInfo(
        name=family.name,
        title=family.title,
        help=family.help.strip(),
        fields=[_field(field) for field in family.fields()],
        presets={
            name: {field.name: getattr(config, field.name) for field in family.fields()}
            for name, config in family.presets.items()
        },
        parameters={
            name: family.parameter_count(config)
            for name, config in family.presets.items()
            if family is not user_model.FAMILY  # a user's models are known once they are built
        },
        suggested={name: dict(family.suggested(name, device.type)) for name in family.presets},
        workloads=list(family.workloads),
        default_preset=default_preset(family, device),
        metrics=[
            protocol.MetricInfo(
                name=metric.name,
                title=metric.title,
                unit=metric.unit,
                help=metric.help,
                row=metric.rows,
                column=metric.columns,
            )
            for metric in family.metrics
        ],
    )


def _field(field: ConfigField) -> protocol.Field:
    return protocol.Field(
        name=field.name,
        title=field.title,
        help=field.help,
        default=field.default,
        choices=list(field.choices),
        minimum=field.minimum,
        maximum=field.maximum,
    )
