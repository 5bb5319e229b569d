"""What stage=train can know before it begins: the target's tensors, the draft, what it starts from, its cache, room."""

from __future__ import annotations

import math
from pathlib import Path

from pipeline.console import size
from pipeline.drafts.model import Model
from pipeline.drafts.planned import planned_draft
from pipeline.preflight import Ahead, Check, checked, draft_name
from stages.train.plan import check_start, checkpoint_bytes, prepare, with_start


def checks(ahead: Ahead) -> list[Check]:
    """All that the draft of ``ahead`` will need, apart from its cache's contents where that is still to come."""
    config, made = ahead.config, list[Model]()

    def draft() -> str:
        made.append(planned_draft(ahead))
        trained = sum(parameter.numel() for parameter in made[0].trainable_parameters())
        return f"{made[0].config.architectures[0]}, {trained:,} parameters to train"

    found = [
        checked("the target's tensors and the draft's layers", draft),
        checked("cache to train on", lambda: cache(ahead)),
    ]
    if not made:
        return found
    if config.drafter.init.draft is not None:
        found.append(checked("drafter.init.draft", lambda: start(ahead, made[0])))
    return [*found, room(ahead, made[0])]


def cache(ahead: Ahead) -> str:
    """The cache, which fits target and drafter; see ``Setup`` for the errors."""
    there = ahead.cache()
    setup = prepare(with_start(ahead.config, ahead.store), there)
    return f"{there.reference}, {len(setup.samples.numbers)} samples to train on"


def start(ahead: Ahead, draft: Model) -> str:
    """The draft that this one starts from; ``UserError`` if there is none, or its tensors mean other things."""
    source = str(ahead.config.drafter.init.draft)
    folder = Path(source) if Path(source).is_dir() else ahead.find("draft", source).path
    check_start(folder, list(draft.config.target_layer_ids), ahead.config.drafter.sample_from_anchor)
    return str(folder)


def room(ahead: Ahead, draft: Model) -> Check:
    """The bytes of the checkpoints that are kept, of the best draft and the last, less what a killed run has left."""
    config, train = ahead.config, ahead.config.train
    trained, parameters = (
        sum(parameter.numel() for parameter in some)
        for some in (draft.trainable_parameters(), draft.parameters())
    )
    kept = train.keep_checkpoints
    if train.steps is not None:
        kept = min(kept, math.ceil(train.steps / train.checkpoint_every))
    needed = kept * checkpoint_bytes(trained, config.deepspeed.stage) + 2 * 2 * parameters
    left = (ahead.store.root / "draft" / draft_name(config)).glob(".partial-*/**/*")
    needed = max(0, needed - sum(path.stat().st_size for path in left if path.is_file()))
    return Check("bytes of checkpoints and draft", "ok", f"{size(needed)} at least", least_bytes=needed)
