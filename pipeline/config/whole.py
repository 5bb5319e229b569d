"""The whole config: its groups and root keys, and the functions that register, resolve and check it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from pipeline.config import keys
from pipeline.config.answers import AnswersConfig, ClientConfig
from pipeline.config.capture import CaptureConfig
from pipeline.config.compare import CompareConfig
from pipeline.config.data import DataConfig
from pipeline.config.drafter import DrafterConfig
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.export import ExportConfig
from pipeline.config.rules import ConfigError, Count, between, check_fields, one_of, together
from pipeline.config.secrets import refuse_secrets
from pipeline.config.study import StudyConfig
from pipeline.config.target import TargetConfig
from pipeline.config.train import DeepSpeedConfig, TrainConfig

STEPS = ("cache", "train", "evaluate", "study", "compare", "report", "export", "import", "list")


@dataclass
class StageConfig:
    """Which stages run, in order."""

    name: str = MISSING
    steps: list[Annotated[str, one_of(*STEPS)]] = field(default_factory=list)


@dataclass
class TrackingConfig:
    """Weights & Biases. In every mode, the run also writes its metrics as JSON lines."""

    mode: Annotated[str, one_of("offline", "online", "none")] = MISSING
    project: str = "draftline"
    entity: str | None = None


@dataclass
class Config:
    """Everything ``python -m pipeline`` takes."""

    stage: StageConfig = field(default_factory=StageConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    data: DataConfig = field(default_factory=DataConfig)
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    artifacts: str = "artifacts"  # root folder of all artifacts
    cache: str | None = None  # artifact references: name, name:latest, name:v3 or a folder
    draft: str | None = None
    evaluation: str | None = None
    evaluations: list[str] = field(default_factory=list)  # references for stage=report
    # stage=evaluate of a running server: its engine, its URL, and the URL of a server without the draft
    engine: Annotated[str, one_of("vllm", "llama_cpp")] | None = None
    server: str | None = None
    plain_server: str | None = None
    client: ClientConfig = field(default_factory=ClientConfig)
    ranks: Count | None = None  # processes; None: the visible GPUs, else 1
    plan: bool = False  # only print what was checked, samples, tokens, bytes and time
    seed: Annotated[int, between(0, 2**32 - 1)] = 0


def register() -> None:
    """Register the schema with Hydra under the name ``schema``, on which conf/config.yaml builds."""
    node = OmegaConf.structured(Config)
    OmegaConf.set_struct(node.evaluate.files, False)  # evaluate.files.mine=... without a plus sign
    ConfigStore.instance().store(name="schema", node=node)


def resolve(cfg: DictConfig) -> Config:
    """The validated config as dataclasses; raises ``ConfigError`` that names the key."""
    keys.refuse_unknown(cfg, Config)
    refuse_own_secrets(cfg)
    try:
        config = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: expected a value, got none") from None
    assert isinstance(config, Config)
    check(config)
    return config


def refuse_own_secrets(cfg: DictConfig) -> None:
    """Raise ``ConfigError`` for a secret in the composed config, Hydra's own part left out."""
    values = OmegaConf.to_container(cfg)
    assert isinstance(values, dict)
    refuse_secrets({str(name): value for name, value in values.items() if name != "hydra"})


def section(config: Any) -> dict[str, Any]:
    """One section as plain JSON values, for fingerprints and manifests."""
    return dataclasses.asdict(config)


def check(config: Config) -> None:
    """Check every value against its field's rule, then the keys against each other.

    Raises ``ConfigError`` that names all keys whose values are not allowed, or else all keys that contradict.
    """
    check_fields(config)
    if found := list(_contradictions(config)):
        raise ConfigError(together(found))


def _contradictions(config: Config) -> Iterator[str]:
    steps = config.stage.steps
    reads_sources = "cache" in steps and (config.cache is None or len(steps) == 1)
    yield from config.train.contradictions(config.deepspeed)
    yield from config.data.contradictions(reads_sources)
    yield from config.answers.contradictions()
    yield from config.target.contradictions(config.answers.source, steps)
    yield from config.capture.contradictions()
    yield from config.drafter.contradictions(config.target)
    yield from config.evaluate.contradictions(config.drafter, config.data, steps)
    calibrate = config.evaluate.calibrate if config.drafter.confidence_head else None
    yield from config.study.contradictions(steps, calibrate)
    yield from _contradictions_in_serving(config)
    if "export" in steps:
        yield from config.export.contradictions()
    if "compare" in steps:
        yield from config.compare.contradictions()


def _contradictions_in_serving(config: Config) -> Iterator[str]:
    """Contradictions of ``engine`` and ``server``, and keys that have no effect on a running server."""
    engine, plain = config.engine, config.plain_server
    if (engine is None) != (config.server is None):
        yield (
            "engine and server: expected both (engine=vllm server=http://127.0.0.1:8000) or neither, got "
            f"engine={engine} and server={config.server}"
        )
    if plain is not None:
        if config.server is None:
            yield f"plain_server={plain}: expected engine and server as well"
        if plain == config.server:
            yield f"plain_server={plain}: expected another server than server, one without the draft"
        if not config.evaluate.baseline:
            yield f"plain_server={plain}: expected evaluate.baseline=true, because this server answers for it"
    if engine is not None:
        if config.stage.steps != ["evaluate"]:
            yield (
                f"engine={engine}: expected stage=evaluate, the only stage that measures a server "
                "(answers=openai lets a server answer for the cache)"
            )
        for key in _set_in_process(config):
            yield f"{key}: this key has no effect on a running server (engine={engine}); remove it"


def _set_in_process(config: Config) -> list[str]:
    """The keys that are set although they only have an effect if this process decodes."""
    evaluate = config.evaluate
    given = {
        "evaluate.threshold": evaluate.threshold > 0,
        "evaluate.calibrate=true": evaluate.calibrate is True,
        "evaluate.sweep=true": evaluate.sweep,
        "evaluate.batch": evaluate.batch > 1,
        "evaluate.profile=true": evaluate.profile,
        "ranks": (config.ranks or 1) > 1,
    }
    return [key for key, is_set in given.items() if is_set]
