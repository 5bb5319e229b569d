"""The checks of stage=export before it begins: whether each format supports the draft, and the converter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pipeline.drafts.folders.checkpoint import read_config
from pipeline.drafts.planned import planned_draft
from pipeline.preflight import Ahead, Check, LaterError, checked, problems
from stages.export.capabilities import check
from stages.export.llama_cpp import script_at
from stages.export.source import DraftFacts, facts_of


def checks(ahead: Ahead) -> list[Check]:
    """A check for each of ``export.formats``, even if the draft is not trained yet."""
    made: list[DraftFacts] = []

    def draft() -> str:
        made.append(facts(ahead))
        return f"{made[0].kind} with {made[0].family} layers"

    def can_hold(form: str) -> str:
        check(form, made[0])
        if form == "llama_cpp" and ahead.config.export.converter:
            script_at(ahead.config.export.converter)
        return f"it takes {made[0].kind}"

    found = [checked("draft to export", draft)]
    if not problems(found):
        found += [checked(f"format {form}", partial(can_hold, form)) for form in ahead.config.export.formats]
    return found


def facts(ahead: Ahead) -> DraftFacts:
    """The facts about the existing draft, or about the one that will be trained."""
    try:
        draft = ahead.draft()
    except LaterError:
        return facts_of(planned_draft(ahead).config)
    return facts_of(read_config(draft if isinstance(draft, Path) else draft.path))
