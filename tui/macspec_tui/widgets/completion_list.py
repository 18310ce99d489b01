"""The commands and values that fit what is being typed, above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from macspec_tui.commands import Completion


class CompletionList(OptionList, can_focus=False):
    """Proposals; the prompt keeps the focus and passes on the keys that move here."""

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False)
        self._proposals: list[Completion] = []

    @property
    def proposals(self) -> Sequence[Completion]:
        """What is shown; empty while hidden."""
        return self._proposals

    @property
    def chosen(self) -> Completion | None:
        """The highlighted proposal."""
        return self._proposals[self.highlighted] if self._proposals and self.highlighted is not None else None

    def propose(self, proposals: Sequence[Completion]) -> None:
        """Show these, or hide when there are none."""
        if list(proposals) == self._proposals:
            return
        self._proposals = list(proposals)
        self.clear_options()
        width = max((len(proposal.label) for proposal in proposals), default=0)
        self.add_options(Option(Content(f"{proposal.label:<{width}}  {proposal.help}")) for proposal in self._proposals)
        self.display = bool(proposals)
        if proposals:
            self.highlighted = 0
