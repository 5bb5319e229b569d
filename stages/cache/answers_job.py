"""The job of answering: the prompts in units of work, the settings, and the fingerprint of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_specs.answers import SCHEMA_VERSION, AnswerRow
from data_specs.manifest import fingerprint
from pipeline.config import Config, ConfigError, section
from pipeline.console import say
from pipeline.prompts.chat import GivenRow, given_rows, render_prompt
from pipeline.prompts.rows import Message, Rejection
from pipeline.prompts.template import control_tokens, digest
from pipeline.prompts.training import TrainingPrompt, TrainingPrompts, load_prompts
from pipeline.ranks import is_main
from pipeline.target.architecture import empty_model
from pipeline.target.files import identity, load_tokenizer
from pipeline.target.location import locate
from stages.cache.source import Settings, effective_settings, left_out

NO_EMBEDDING = "token_without_embedding"  # a reason for rejecting a row


@dataclass(frozen=True)
class AnswersJob:
    """Everything known before the first token: the prompts, the target and the settings."""

    config: Config
    folder: Path
    tokenizer: Any
    prompts: TrainingPrompts
    asked: list[TrainingPrompt]  # prompts to answer for the cache; benchmark prompts are never among them
    settings: Settings | None  # None if the data contain the answers
    fingerprint: str
    embedding_rows: int  # ids from this one on have no embedding, although the tokenizer may know them

    def embeds(self, ids: Sequence[int]) -> bool:
        """Whether the target has an embedding for every one of ``ids``."""
        return max(ids) < self.embedding_rows

    def render(self, prompt: TrainingPrompt, messages: Sequence[Message]) -> list[int]:
        """Ids of ``messages`` and the generation prompt, with the tools of ``prompt``. Raises ``TemplateRefusal``."""
        return render_prompt(self.tokenizer, messages, self.config.target.thinking, prompt.tools)

    def given(self, prompt: TrainingPrompt) -> list[GivenRow] | Rejection:
        """The answers that the data contain for ``prompt``."""
        return given_rows(self.tokenizer, prompt.messages, self.config.target.thinking, prompt.tools)

    @property
    def units(self) -> dict[str, list[TrainingPrompt]]:
        """The prompts of each unit, by its name; the same in every process, as only the list of prompts decides."""
        step = self.config.answers.chunk_prompts
        return {f"{i // step:05d}": self.asked[i : i + step] for i in range(0, len(self.asked), step)}


def prepare(config: Config, prompts: TrainingPrompts | None = None) -> AnswersJob:
    """Check the config, read the prompts unless they are passed in; ``ConfigError`` names a bad key."""
    given = config.answers.source == "given"
    folder, tokenizer, rows = answering_target(config)
    prompts = prompts or load_prompts(config.data, given, control_tokens(tokenizer))
    asked, settings = to_answer(prompts), None if given else _settings(config, folder)
    made_of = _fingerprint(config, folder, prompts, settings)
    return AnswersJob(config, folder, tokenizer, prompts, asked, settings, made_of, rows)


def answering_target(config: Config) -> tuple[Path, Any, int]:
    """The target's folder, tokenizer and number of embeddings; ``ConfigError`` if the model cannot be a target."""
    folder = locate(config.target)
    model = empty_model(folder, config.target)
    tokenizer = load_tokenizer(folder, config.target)
    if not tokenizer.chat_template:
        raise ConfigError(f"target.path={folder}: its tokenizer has no chat template (chat_template.jinja)")
    return folder, tokenizer, len(model.get_input_embeddings().weight)


def to_answer(prompts: TrainingPrompts) -> list[TrainingPrompt]:
    """All prompts except a benchmark's; if there are none, ``ConfigError`` lists the rejections."""
    asked = prompts.of("train", "heldout")
    if not asked:
        raise ConfigError(
            f"data: there is no prompt to answer; read {prompts.read} rows, rejected {prompts.rejected}"
        )
    return asked


@dataclass
class Talk:
    """A conversation in progress: the user's turns, the messages so far, and the rows of its answers."""

    prompt: TrainingPrompt
    questions: list[Message]
    history: list[Message]
    rows: list[AnswerRow] = field(default_factory=list)
    over: bool = False


def talk_of(prompt: TrainingPrompt) -> Talk:
    """The conversation that ``prompt`` starts, with its system message and the questions to ask."""
    system = [message for message in prompt.messages[:1] if message["role"] == "system"]
    return Talk(prompt, [message for message in prompt.messages if message["role"] == "user"], system)


def _settings(config: Config, folder: Path) -> Settings:
    """The settings in effect, after checking that the engine supports them."""
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text()) if path.is_file() else {}
    settings = effective_settings(config.answers, generation)
    if config.answers.source == "hf":
        from stages.cache.source_hf import check_settings

        check_settings(settings)
    else:
        from stages.cache.source_openai import check_config

        check_config(config.answers.openai)
    if is_main() and (ignored := left_out(generation)):
        say(f"{path} sets {', '.join(ignored)}, but draftline applies none of these", "warning:")
    return settings


def sampling_of(job: AnswersJob) -> dict[str, Any]:
    """The engine, seed and settings of the answers, as rows and manifest record them."""
    if job.settings is None:
        return {"engine": "given"}
    return {"engine": job.config.answers.source, "seed": job.config.seed, **job.settings.active()}


def _fingerprint(config: Config, folder: Path, prompts: TrainingPrompts, settings: Settings | None) -> str:
    """The fingerprint of everything that changes an answer. Retries and workers, for example, do not.

    It covers the batch size if the target samples, because all draws of a batch come from one generator.
    """
    answers = config.answers
    parts: dict[str, Any] = {
        "engine": answers.source,
        "chunk_prompts": answers.chunk_prompts,
        "thinking": config.target.rendering,
    }
    if settings is not None:
        parts |= {"settings": settings.active(), "seed": config.seed}
        if answers.source == "hf" and settings.temperature > 0:
            parts |= {"batch_size": answers.batch_size}
        parts |= {"dtype": config.target.dtype} if answers.source == "hf" else {"model": answers.openai.model}
    return fingerprint("answers", SCHEMA_VERSION, parts, identity(folder), prompts.fingerprint())


def recorded(job: AnswersJob) -> dict[str, Any]:
    """The part of the config that the manifest records, with the chat template's digest."""
    config = job.config
    kept: dict[str, Any] = {name: section(getattr(config, name)) for name in ("target", "data", "answers")}
    kept["target"]["chat_template"] = digest(job.tokenizer)
    return kept | {"seed": config.seed}


def seed_of(job: AnswersJob, unit: str, turn: int) -> int:
    """A seed below 2**31 that depends on the config's seed, the unit and the turn."""
    digest = hashlib.sha256(f"{job.config.seed}/{unit}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def unit_path(folder: Path, unit: str) -> Path:
    """The file of one unit of answers."""
    return folder / f"{unit}.parquet"
