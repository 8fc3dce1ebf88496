"""The catalogue of a watched script: the settings that can be changed from outside."""

from __future__ import annotations

from sessions.model import SCRIPT
from workbench import protocol
from workbench.instrument.settings import DEFAULT, SETTINGS
from workbench.protocol.catalogue import (
    FamilyInfo,
    MetricInfo,
    OptionInfo,
    ToggleInfo,
    WorkloadInfo,
)
from workbench.runner.instruments.host_facts import cpu_name, host_facts

INPUT_WAIT = "input_wait"
WORKLOAD = "train"


def catalogue(created: float) -> protocol.Catalogue:
    """Return the first message; what the script's own process knows follows later."""
    facts = host_facts()
    return protocol.Catalogue(
        version=protocol.VERSION,
        created=created,
        device="cpu",
        device_title=cpu_name(),
        environment={"device": cpu_name(), **facts},
        families=[
            FamilyInfo(
                name=SCRIPT,
                title="Training script",
                help="Your own training script, watched from outside.",
                fields=[],
                presets={},
                parameters={},
                suggested={},
                workloads=[WORKLOAD],
                default_preset="",
                metrics=[
                    MetricInfo(
                        name=INPUT_WAIT,
                        title="Input wait",
                        unit="ms",
                        help="Time of a step in which the script waits for its next batch.",
                        row="script",
                        column="",
                    )
                ],
            )
        ],
        workloads=[
            WorkloadInfo(name=WORKLOAD, title="Train", help="The script's own steps.", fields=[])
        ],
        toggles=[
            ToggleInfo(
                name=setting.name,
                title=setting.title,
                help=setting.help,
                group="Script",
                options=[
                    OptionInfo(name=name, title=title) for name, title in setting.options.items()
                ],
                default=DEFAULT,
            )
            for setting in SETTINGS.values()
        ],
        operators={},
    )
