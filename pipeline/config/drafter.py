"""The group ``drafter``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from pipeline.config.rules import PAIR, Count, Name, Natural, Positive, Rule, Share, Weight, at_least, one_of
from pipeline.config.target import TargetConfig
from pipeline.drafts.algorithms import ALGORITHMS, FAMILIES

# kinds of rotary positions, and the settings that each needs
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
ASCENDING = Rule("numbers in ascending order", lambda values: list(values) == sorted(values))


@dataclass
class LossConfig:
    """Loss weights (paper, eq. 9: 0.1 / 0.9 / 1.0) and their schedule over the run."""

    ce: Weight = 0.1
    l1: Weight = 0.9
    confidence: Weight = 1.0
    soft: Weight = 0.0  # cross-entropy against the target's distribution (Eagle3)
    # position weight exp(-(k-1)/decay); None: the block size (eagle3: 0.8 a step)
    decay: Positive | None = None
    ce_start: Weight | None = None  # weights at the first step, moved linearly to the above ...
    l1_start: Weight | None = None
    confidence_start: Weight | None = None
    # ... between these shares of the run
    ramp: Annotated[list[Share], PAIR, ASCENDING] = field(default_factory=lambda: [0.0, 0.0])
    chunk_slots: Count = 512  # rows of the logits [slots, V] that are in memory at a time


@dataclass
class InitConfig:
    """What a new draft starts from, besides the target's frozen embedding and head."""

    final_norm: bool = False  # copy the target's final norm
    layers: bool = False  # start the draft layers from the target's last ones
    # start the Markov head from the bigrams of the cache; the value is the number of draws that smooth them
    bigram: Positive | None = None
    draft: str | None = None  # start from a trained draft (name, name:v3 or folder): a DFlash for a DSpark


@dataclass
class DrafterConfig:
    """The drafting algorithm and its size."""

    name: Name = MISSING
    algorithm: Annotated[str, one_of(*ALGORITHMS)] = MISSING
    family: Annotated[str, one_of(*FAMILIES)] | None = None  # None: gemma4 for Gemma targets, else qwen3
    block_size: Count = 7  # slots of a block (dspark, dflash), drafts a block (eagle3, mtp)
    depth: Count = 5
    num_taps: Natural | None = None  # taps of the cache that are read, spread evenly; None: all
    sliding_window: Count | None = None  # positions of the context that the draft attends to; None: all
    # rotary settings of the draft as in config.json (rope_type, factor, ...); None: the target's
    rope_scaling: Any = None  # a dict: OmegaConf lets nobody set a typed one from the command line
    # the draft proposes only this many tokens, the most frequent ones of the cache; None: all
    vocab_size: Annotated[int, at_least(2)] | None = None
    sample_from_anchor: bool = True  # false: 1+N fill-in, slot k drafts the token at its own position
    markov_rank: Natural = 256  # 0: no sequential head
    markov_head: Annotated[str, one_of("vanilla", "gated", "rnn")] = "vanilla"
    learned_start: bool = False  # rnn: the state before the first draft is learned
    confidence_head: bool = True
    # soft: 1 - TV(draft, target); sampled: an accept/reject drawn from it
    confidence_label: Annotated[str, one_of("soft", "sampled")] = "soft"
    # drafts of a block that are trained (eagle3: steps of the training-time test); None: all
    train_steps: Count | None = None
    loss: LossConfig = field(default_factory=LossConfig)
    init: InitConfig = field(default_factory=InitConfig)

    def contradictions(self, target: TargetConfig) -> Iterator[str]:
        """Yield a message for each contradiction in ``drafter``, or between it and ``target``."""
        taps = target.num_taps if target.taps is None else len(target.taps)
        window, size = self.sliding_window, self.block_size
        fixed = ALGORITHMS[self.algorithm].fixed
        for key, value in fixed.items():
            if getattr(self, key) != value:
                got = getattr(self, key)
                yield f"drafter.{key}={got}: drafter.algorithm={self.algorithm} expects {value}"
        if window is not None and window < size:
            yield f"drafter.sliding_window={window}: expected at least drafter.block_size={size}"
        if not self.sample_from_anchor and size < 2:
            yield (
                "drafter.block_size: expected at least 2 with drafter.sample_from_anchor=false, because slot 0 drafts "
                "nothing"
            )
        if self.num_taps == 0 and "num_taps" not in fixed:
            yield (
                f"drafter.num_taps=0: expected at least 1, because drafter.algorithm={self.algorithm} drafts from the "
                "target's taps"
            )
        if (self.num_taps or 0) > taps:
            yield f"drafter.num_taps={self.num_taps}: the target has only {taps} (target.taps, target.num_taps)"
        yield from self._contradictions_in_heads()
        yield from self._contradictions_in_rope()

    def _contradictions_in_rope(self) -> Iterator[str]:
        kind = dict(self.rope_scaling or {"rope_type": "default"}).get("rope_type")
        if kind not in ROPE_TYPES:
            yield f"drafter.rope_scaling.rope_type={kind}: expected one of {', '.join(ROPE_TYPES)}"
        for name in ROPE_TYPES.get(str(kind), ()):
            if name not in (self.rope_scaling or ()):
                yield f"drafter.rope_scaling.{name}: expected a value, because rope_type={kind} needs it"

    def _contradictions_in_heads(self) -> Iterator[str]:
        if self.markov_rank == 0 and self.markov_head != "vanilla":
            yield (
                f"drafter.markov_head={self.markov_head}: expected vanilla with "
                "drafter.markov_rank=0, which leaves the head out"
            )
        if self.markov_rank == 0 and self.init.bigram is not None:
            yield "drafter.init.bigram: expected null with drafter.markov_rank=0, which leaves the Markov head out"
        if self.learned_start and self.markov_head != "rnn":
            yield (
                "drafter.learned_start: expected drafter.markov_head=rnn, the only head with a state, got "
                f"{self.markov_head}"
            )
        if self.confidence_label != "soft" and not self.confidence_head:
            yield f"drafter.confidence_label={self.confidence_label}: expected drafter.confidence_head=true"
