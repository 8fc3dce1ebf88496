"""Evidence of a variant: the findings of its toggles about their own effects."""

from __future__ import annotations

from sessions.model import Evidence
from workbench.runner.failures import explain, is_fatal
from workbench.runner.toggles import Toggle, all_toggles, unknown
from workbench.runner.variants.observed import Observed


def collect(observed: Observed) -> list[Evidence]:
    """Return the evidence of every toggle that is on, or had to choose; the variant is entered.

    A failure makes a toggle's evidence unknown; only a fatal one is raised.
    """
    evidence = (_evidence_of(toggle, observed) for toggle in all_toggles().values())
    return [item for item in evidence if item is not None]


def _evidence_of(toggle: Toggle, observed: Observed) -> Evidence | None:
    option = observed.situation.option(toggle.name)
    if option == toggle.off and not (toggle.chooses and toggle.chooses(observed)):
        return None
    try:
        finding = toggle.evidence(option, observed)
    except Exception as error:  # evidence may run the model, which may raise anything
        if is_fatal(error):
            raise
        finding = unknown(f"the evidence could not be collected: {explain(error).sentence}")
    return Evidence(toggle.name, option, finding.status, finding.text)
