"""The group ``target``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from pipeline.config.rules import EACH_ONCE, NOT_EMPTY, Count, Name, Natural, at_least, one_of


@dataclass
class TargetConfig:
    """The frozen model that a draft makes faster."""

    name: Name = MISSING  # short name, part of artifact names
    path: str = MISSING  # Hub id or local folder
    revision: str | None = None
    # folder of a LoRA (peft); it is merged into the weights once, and the result is kept in the user's cache
    adapter: str | None = None
    dtype: Annotated[str, one_of("float32", "bfloat16")] = "bfloat16"  # what the target computes in
    # decoder layers whose output is tapped (-1: embedding); None: spread evenly
    taps: Annotated[list[Annotated[int, at_least(-1)]], NOT_EMPTY, EACH_ONCE] | None = None
    num_taps: Count = 5
    mask_token_id: Natural | None = None  # None: chosen by pipeline/drafts/starts/mask_token.py
    thinking: bool | None = None  # of the chat template's own switch; None: the template's default
    template_kwargs: dict[str, Any] = field(default_factory=dict)  # more variables of the chat template
    device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
    tensor_parallel: Count = 1  # ranks that hold the target together while its states are captured
    attention: str = "auto"  # as transformers names it (sdpa, eager, ...); auto: sdpa where the target has it
    trust_remote_code: bool = False
    package: str | None = None  # installed package that carries the weights as GGUF ...
    gguf: str | None = None  # ... and the file's name in it; converted once into the user's cache

    @property
    def rendering(self) -> Any:
        """The chat template's settings for fingerprints; ``thinking`` alone if there are no others."""
        return [self.thinking, self.template_kwargs] if self.template_kwargs else self.thinking

    def contradictions(self, answers_source: str, steps: Sequence[str]) -> Iterator[str]:
        """Yield a message for each contradiction in ``target``, or between it and the stage's ``steps``."""
        if not (self.path or self.package):
            yield "target.path: expected a Hub id or a folder, got nothing"
        if bool(self.package) != bool(self.gguf):
            yield "target.package and target.gguf: expected both or neither"
        if self.tensor_parallel > 1:
            given = f"target.tensor_parallel={self.tensor_parallel}"
            if "cache" in steps and answers_source == "hf":
                yield (
                    f"{given}: expected 1 with answers=hf, which runs the whole target in one process "
                    "(answers=openai asks a server, answers=given takes the answers in the data)"
                )
            if {"evaluate", "compare"} & set(steps):
                yield f"{given}: expected 1, because an evaluation runs the whole target in one process"
