"""Suggestions of what to try next that are possible here; a click applies or judges them."""

from __future__ import annotations

import msgspec

from sessions.model import Configuration, Study
from sessions.studies import next_steps
from sessions.studies.next_steps import Option, Suggestion
from workbench.ui.controllers.verdict_user import VerdictUser
from workbench.ui.state import config_edit


class NextSteps(VerdictUser):
    """Suggestions from a profile, and the actions that apply or measure them."""

    def suggestions(self, study: Study) -> list[Suggestion]:
        """Return what to try after a profile, best first."""
        return next_steps.suggest(self._session.shown, study, self._is_usable)

    def why_not_apply(self, suggestion: Suggestion) -> str:
        """Return why the option cannot be chosen; empty if it can."""
        if not suggestion.toggles:
            return "The workbench has no option for this."
        if self._configuration.catalogue is None or self._configuration.edited is None:
            return "The runner has not started yet."
        if suggestion.toggles.items() <= self._configuration.edited.toggles.items():
            return "This option is already chosen."
        return ""

    def apply(self, suggestion: Suggestion) -> None:
        """Choose the option for the run in progress or the next run."""
        if not self.why_not_apply(suggestion):
            self._configuration.choose(suggestion.toggles, suggestion.options[0].title)

    def why_not_judge(self, suggestion: Suggestion, study: Study) -> str:
        """Return why no verdict can be measured; empty if one can."""
        if not suggestion.toggles:
            return "The workbench has no option for this."
        base = self._base(study)
        if base is None:
            return "The profiled configuration is not known here."
        return self._verdicts.why_not()

    def judge(self, suggestion: Suggestion, study: Study) -> None:
        """Compare the profiled configuration with and without the option."""
        base = self._base(study)
        if base is not None and not self.why_not_judge(suggestion, study):
            other = config_edit.with_toggles(base, suggestion.toggles)
            self._verdicts.pairChosen.emit()
            self._verdicts.judge(base, other, self._run.running)

    def _base(self, study: Study) -> Configuration | None:
        catalogue = self._configuration.catalogue
        try:
            text = str(study.request.get("configuration", ""))
            configuration = msgspec.json.decode(text, type=Configuration)
        except msgspec.MsgspecError:
            return None
        if catalogue is None or config_edit.missing(catalogue, configuration):
            return None
        return config_edit.adopt(catalogue, configuration)

    def _is_usable(self, option: Option) -> bool:
        catalogue = self._configuration.catalogue
        if catalogue is None:
            return True  # an opened file
        toggle = next((info for info in catalogue.toggles if info.name == option.toggle), None)
        if toggle is None or all(known.name != option.option for known in toggle.options):
            return False
        return option.option not in self._configuration.blocked(option.toggle)
