"""The checks of stage=train before it begins: target, draft, the draft that it starts from, cache, and disk space."""

from __future__ import annotations

import math
from pathlib import Path

from pipeline.console import size
from pipeline.drafts.model import Model
from pipeline.drafts.planned import planned_draft
from pipeline.preflight import Ahead, Check, checked, draft_name
from stages.train.plan import check_start, checkpoint_bytes, prepare, with_start


def checks(ahead: Ahead) -> list[Check]:
    """Check everything that the training of ``ahead`` needs, except the contents of a cache that does not exist yet."""
    config, made = ahead.config, list[Model]()

    def draft() -> str:
        made.append(planned_draft(ahead))
        trained = sum(parameter.numel() for parameter in made[0].trainable_parameters())
        return f"{made[0].config.architectures[0]}, {trained:,} parameters to train"

    found = [checked("the target's tensors and the draft's layers", draft)]
    found.append(checked("cache to train on", lambda: cache(ahead)))
    if not made:
        return found
    if config.drafter.init.draft is not None:
        found.append(checked("drafter.init.draft", lambda: start(ahead, made[0])))
    return [*found, room(ahead, made[0])]


def cache(ahead: Ahead) -> str:
    """Check that the cache fits target and drafter. ``Setup`` describes the errors."""
    setup = prepare(with_start(ahead.config, ahead.store), ahead.cache())
    return f"{setup.cache.reference}, {len(setup.samples.numbers)} samples to train on"


def start(ahead: Ahead, draft: Model) -> str:
    """Check the draft that this one starts from. Raises ``UserError`` if there is none, or as ``check_start`` does."""
    source = str(ahead.config.drafter.init.draft)
    folder = Path(source) if Path(source).is_dir() else ahead.find("draft", source).path
    check_start(folder, list(draft.config.target_layer_ids), ahead.config.drafter.sample_from_anchor)
    return str(folder)


def room(ahead: Ahead, draft: Model) -> Check:
    """The bytes of the kept checkpoints and of the best and the last draft, minus the files of a killed run."""
    config, train = ahead.config, ahead.config.train
    trained = sum(parameter.numel() for parameter in draft.trainable_parameters())
    parameters = sum(parameter.numel() for parameter in draft.parameters())
    kept = train.keep_checkpoints
    if train.steps is not None:
        kept = min(kept, math.ceil(train.steps / train.checkpoint_every))
    needed = kept * checkpoint_bytes(trained, config.deepspeed.stage) + 2 * 2 * parameters
    left = (ahead.store.root / "draft" / draft_name(config)).glob(".partial-*/**/*")
    needed = max(0, needed - sum(path.stat().st_size for path in left if path.is_file()))
    return Check("bytes of checkpoints and draft", "ok", f"{size(needed)} at least", least_bytes=needed)
