"""The typed schema of every config group; an unknown key or a contradiction is an error that names the key."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

import data_specs
from data_specs.errors import UserError
from data_specs.export import FORMATS
from pipeline.drafts.algorithms import ALGORITHMS, FAMILIES


class ConfigError(UserError):
    """A value, or a pair of values, that cannot be run; the message names the keys."""


@dataclass
class StageConfig:
    """Which stages run, in order."""

    name: str = MISSING
    steps: list[str] = field(default_factory=list)


@dataclass
class TargetConfig:
    """The frozen model that is to be served faster."""

    name: str = MISSING  # short name, part of artifact names
    path: str = MISSING  # Hub id or local folder
    revision: str | None = None
    dtype: str = "bfloat16"  # float32 | bfloat16: what the target computes in
    taps: list[int] | None = (
        None  # decoder layers whose output is tapped (-1: embedding); None: spread evenly
    )
    num_taps: int = 5
    mask_token_id: int | None = None  # None: chosen by pipeline/drafts/starts/mask_token.py
    thinking: bool | None = None  # enable_thinking of the chat template; None: the template's default
    device: str = "auto"  # auto | cpu | cuda
    tensor_parallel: int = 1  # ranks that hold the target together while its states are captured
    attention: str = "auto"  # as transformers names it (sdpa, eager, ...); auto: sdpa where the target has it
    trust_remote_code: bool = False
    package: str | None = None  # installed package that carries the weights as GGUF ...
    gguf: str | None = None  # ... and the file's name in it; converted once into the user's cache


@dataclass
class SourceConfig:
    """One source of prompts: a JSONL or Parquet file (or a folder of them), or a Hub data set."""

    path: str = MISSING
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    limit: int | None = None


@dataclass
class DataConfig:
    """Prompts, and how they are split by a stable hash of the prompt."""

    name: str = MISSING
    sources: list[SourceConfig] = field(default_factory=list)
    heldout: float = 0.02  # share of prompts kept for held-out loss and calibration
    benchmark: float = 0.0  # share of prompts never cached, kept for evaluation
    max_prompts: int | None = None


@dataclass
class AskingConfig:
    """How a server is asked."""

    model: str | None = None  # None: the first that the server lists
    retries: int = 6
    backoff: float = 1.0  # seconds before the first retry; doubles
    timeout: float = 600.0
    api_key_env: str | None = None  # name of the environment variable that holds the key


@dataclass
class OpenAIConfig(AskingConfig):
    """An OpenAI-compatible server (or several) that answers as the target."""

    base_urls: list[str] = field(default_factory=list)
    concurrency: int = 64


@dataclass
class ClientConfig(AskingConfig):
    """How stage=evaluate asks ``server`` and ``plain_server``."""

    note: str | None = None  # what is special about the server: shown, and another note is another evaluation


@dataclass
class AnswersConfig:
    """How the target answers the prompts. None in a sampling field: as the target's generation config."""

    engine: str = MISSING  # hf | openai | given
    max_new_tokens: int = 512
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    batch_size: int = 32  # hf: prompts answered together
    chunk_prompts: int = 128  # unit of resume and of work sharing between ranks
    openai: OpenAIConfig = field(default_factory=OpenAIConfig)


@dataclass
class VllmConfig:
    """vLLM in an environment of its own, for ``capture.engine=vllm``."""

    python: str | None = None  # the interpreter of that environment; None: this one
    timeout: float = 1800.0  # seconds without a word from it, also while it loads the target
    options: dict[str, Any] = field(default_factory=dict)  # of vllm.LLM, such as gpu_memory_utilization


@dataclass
class CaptureConfig:
    """The target cache: what computes the states, what is stored, and how it is cut."""

    engine: str = "hf"  # hf: the target in this process | vllm
    vllm: VllmConfig = field(default_factory=VllmConfig)
    max_length: int = 4096  # tokens of a sample; longer ones are truncated, unsupervised ones left out
    batch_tokens: int = 8192  # padded tokens of one forward pass
    segment_tokens: int = 65536  # unit of resume and of work sharing between ranks
    chunk_tokens: int = 128
    shard_tokens: int = 16384  # a multiple of chunk_tokens
    codec: str = "none"  # none | zstd | blosc
    logits: str = "none"  # none | topk | full
    top_k: int = 64


@dataclass
class LossConfig:
    """Loss weights (paper, eq. 9: 0.1 / 0.9 / 1.0) and their schedule over the run."""

    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    soft: float = 0.0  # cross-entropy against the target's distribution (Eagle3)
    decay: float | None = None  # position weight exp(-(k-1)/decay); None: the block size (eagle3: 0.8 a step)
    ce_start: float | None = None  # weights at the first step, moved linearly to the above ...
    l1_start: float | None = None
    confidence_start: float | None = None
    ramp: list[float] = field(default_factory=lambda: [0.0, 0.0])  # ... between these shares of the run
    chunk_slots: int = 512  # rows of [slots, V] that exist at a time, in the type of the products


@dataclass
class InitConfig:
    """What a new draft takes from the target beside the frozen embedding and head."""

    final_norm: bool = False  # copy the target's final norm
    layers: bool = False  # start the draft layers from the target's last ones
    bigram: float | None = (
        None  # start the Markov head from the bigrams of the cache, smoothed with so many draws
    )
    draft: str | None = None  # start from a trained draft (name, name:v3 or folder): a DFlash for a DSpark


@dataclass
class DrafterConfig:
    """The drafting algorithm and its size."""

    name: str = MISSING
    algorithm: str = MISSING  # one of pipeline/drafts/algorithms.py
    family: str | None = (
        None  # decoder layers: qwen3 | gemma4 | llama; None: gemma4 for Gemma targets, else qwen3
    )
    block_size: int = 7  # slots of a block (dspark, dflash), drafts a block (eagle3, mtp)
    depth: int = 5
    num_taps: int | None = None  # taps of the cache that are read, spread evenly; None: all
    sliding_window: int | None = None  # positions of the context that the draft's layers see; None: all
    vocab_size: int | None = (
        None  # the draft proposes only so many tokens, the cache's most frequent; None: all
    )
    sample_from_anchor: bool = True  # false: 1+N fill-in, slot k drafts the token at its own position
    markov_rank: int = 256  # 0: no sequential head
    markov_head: str = "vanilla"  # vanilla | gated | rnn
    learned_start: bool = False  # rnn: the state before the first draft is learned
    confidence_head: bool = True
    confidence_label: str = "soft"  # soft: 1 - TV(draft, target); sampled: an accept/reject drawn from it
    train_steps: int | None = (
        None  # drafts of a block that have a loss (eagle3: training-time test); None: all
    )
    loss: LossConfig = field(default_factory=LossConfig)
    init: InitConfig = field(default_factory=InitConfig)


@dataclass
class TrainConfig:
    """The optimisation of the draft."""

    steps: int | None = None  # exactly one of steps and epochs
    epochs: float | None = None
    global_batch: int = 512  # sequences a step over all ranks
    micro_batch: int = 8  # sequences a forward pass on one rank
    anchors: int = 512  # blocks a sequence
    lr: float = 6e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.0
    warmup: float = 0.04  # share of the steps
    min_lr: float = 0.0  # share of lr at the end of the cosine
    clip: float = 1.0
    dtype: str = "bf16"  # bf16 | fp32
    attention: str = "auto"  # auto | dense | grouped | flex
    checkpoint_every: int = 500
    evaluate_every: int = 500
    keep_checkpoints: int = 2
    heldout_samples: int = 256
    workers: int = 2  # background readers a rank
    verify: str = "full"  # full | size: how the cache is checked before the first step
    compile: bool = False


@dataclass
class DeepSpeedConfig:
    """Passed on to DeepSpeed; ``extra`` is merged into its JSON last."""

    stage: int = 1
    offload_optimizer: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def benchmark_names() -> list[str]:
    """The benchmarks that data_specs describes."""
    return sorted(path.stem for path in (Path(data_specs.__file__).parent / "benchmarks").glob("*.yaml"))


@dataclass
class EvaluateConfig:
    """Speculative decoding on benchmarks."""

    benchmarks: list[str] = field(default_factory=list)  # files of data_specs/benchmarks, without .yaml
    # benchmark -> local file used instead of its Hub id (null: the Hub's)
    files: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(benchmark_names()))
    prompts: int | None = None  # at most so many prompts a benchmark
    max_new_tokens: int = 2048
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    threshold: float = 0.0  # the block is cut before the first slot with confidence below it
    # fit temperatures of the confidences on held-out prompts; None: where the draft has a confidence head
    calibrate: bool | None = None
    calibration_prompts: int = 64  # at most so many, spread over data.sources
    sweep: bool = False  # what thresholds 0.0, 0.1 ... 0.9 would bring
    baseline: bool = True  # decode the same prompts without the draft, in the same run
    bootstrap: int = 1000
    batch: int = 1  # prompts at a time; above 1 by the batched engine (pipeline/decoding/batched.py)
    chunk_prompts: int = 4  # unit of resume and of work sharing between ranks
    profile_tokens: int = 128  # with profile=true: Bmax, the tokens of the largest step
    profile_contexts: list[int] = field(
        default_factory=lambda: [128, 512]
    )  # positions before a request's tokens
    profile_repeats: int = 7


@dataclass
class StudyConfig:
    """Policies under load, really served and simulated (stage=study). Prompts and sampler are those of ``evaluate``."""

    in_chain: bool = False  # stage=all ends with it, with those policies that its draft can have
    # plain, fixed (the longest), fixed_N, threshold, algorithm_1, asynchronous
    policies: list[str] = field(default_factory=list)
    threshold: float = 0.5  # of the policy of this name, on each draft's confidence
    calibrated: bool = True  # confidences by the draft's calibration.json, which stage=evaluate makes
    max_new_tokens: int = 64  # of a request
    concurrencies: list[int] = field(default_factory=list)  # requests at a time that are really served
    requests_per_slot: int = 3  # requests of a point by its concurrency ...
    least_requests: int = 8  # ... and at least
    repeats: int = 1  # of every point, as far apart as can be: a machine's speed drifts
    timing_tokens: int = 32  # of the longest request of the timings around each point
    simulate: bool = True  # predict the points, and simulate ``sps``
    sps: list[str] = field(default_factory=list)  # tables of data_specs/sps, or files
    simulated_concurrencies: list[int] = field(default_factory=list)
    simulated_requests_per_slot: int = 4
    simulated_prefill_tokens: int = 8192  # prompt tokens a step
    arrivals: list[float] = field(
        default_factory=list
    )  # Poisson loads, shares of what fixed drafts serve at most
    sla: list[float] = field(default_factory=lambda: [20.0, 40.0, 80.0])  # tokens/s/user


@dataclass
class FigureConfig:
    """Accepted length against one key of the config, a line a drafter."""

    title: str = MISSING
    key: str = MISSING  # what is varied, for example drafter.depth
    values: list[int] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)  # some of compare.drafters
    latency: bool = False  # also measure what share of a draft step its left-to-right part takes


@dataclass
class CompareConfig:
    """Drafters trained on one cache with equal data and steps (stage=compare)."""

    name: str = "drafters"  # with the target's name that of the artifact
    # name -> the overrides that make it, for example [drafter=dflash, drafter.depth=2]
    drafters: dict[str, list[str]] = field(default_factory=dict)
    table: list[str] = field(default_factory=list)  # drafters of the main table; ratios are to the first
    table_overrides: list[str] = field(default_factory=list)  # of these only: more prompts, plain decoding
    figures: dict[str, FigureConfig] = field(default_factory=dict)


@dataclass
class ExportConfig:
    """Drafts in the layouts that engines load (stage=export), and drafts of others as artifacts (stage=import)."""

    formats: list[str] = field(default_factory=list)  # vllm | sglang | llama_cpp | mlx | speculators | hub
    name: str | None = None  # of the artifact; None: the draft's, and the format
    # Hub id (or, for GGUF files, folder) of the target; None: as the draft's manifest says
    target: str | None = None
    converter: str | None = (
        None  # llama.cpp's convert_hf_to_gguf.py or its checkout: export=llama_cpp then writes GGUF files too
    )
    python: str | None = None  # interpreter that runs it (it imports sentencepiece); None: this one
    outtype: str = "auto"  # auto | f32 | bf16 | f16: numbers in the GGUF files
    repo: str | None = None  # Hub repository of export=hub, owner/name
    push: bool = False  # upload to it; without it nothing leaves this machine
    private: bool = True
    license: str | None = None  # of the draft, for the model card


@dataclass
class TrackingConfig:
    """Weights & Biases; the JSON lines of the run are the record whatever the mode."""

    mode: str = MISSING  # offline | online | none
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
    # stage=evaluate by the counters of a server that runs: vllm | llama_cpp, its URL, and that of one without the draft
    engine: str | None = None
    server: str | None = None
    plain_server: str | None = None
    client: ClientConfig = field(default_factory=ClientConfig)
    ranks: int | None = None  # processes; None: the visible GPUs, else 1
    profile: bool = False  # stage=evaluate also measures steps a second by tokens, SPS(B)
    plan: bool = False  # print samples, tokens, bytes and time, and do nothing else
    seed: int = 0


def register() -> None:
    """Make the schema known to Hydra as ``schema``, which conf/config.yaml starts from."""
    ConfigStore.instance().store(name="schema", node=Config)


def resolve(cfg: DictConfig) -> Config:
    """The validated config as dataclasses; raises ``ConfigError`` that names the key."""
    try:
        config = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: a value is needed") from None
    assert isinstance(config, Config)
    check(config)
    return config


def section(config: Any) -> dict[str, Any]:
    """One section as plain JSON values, for fingerprints and manifests."""
    return dataclasses.asdict(config)


CHOICES = {
    "target.dtype": ("float32", "bfloat16"),
    "target.device": ("auto", "cpu", "cuda"),
    "answers.engine": ("hf", "openai", "given"),
    "capture.engine": ("hf", "vllm"),
    "capture.codec": ("none", "zstd", "blosc"),
    "capture.logits": ("none", "topk", "full"),
    "drafter.algorithm": tuple(ALGORITHMS),
    "drafter.family": (None, *FAMILIES),
    "drafter.markov_head": ("vanilla", "gated", "rnn"),
    "drafter.confidence_label": ("soft", "sampled"),
    "train.dtype": ("bf16", "fp32"),
    "train.attention": ("auto", "dense", "grouped", "flex"),
    "train.verify": ("full", "size"),
    "deepspeed.stage": (0, 1, 2, 3),
    "export.outtype": ("auto", "f32", "bf16", "f16"),
    "engine": (None, "vllm", "llama_cpp"),
    "tracking.mode": ("offline", "online", "none"),
}
AT_LEAST = {
    "target.tensor_parallel": 1,
    "answers.max_new_tokens": 1, "answers.batch_size": 1, "answers.chunk_prompts": 1, "answers.openai.concurrency": 1,
    "answers.openai.retries": 0, "capture.max_length": 2, "capture.batch_tokens": 1, "capture.segment_tokens": 1,
    "capture.chunk_tokens": 1, "capture.top_k": 1, "capture.vllm.timeout": 1,
    "drafter.block_size": 1, "drafter.depth": 1, "drafter.markov_rank": 0, "drafter.num_taps": 0,
    "drafter.vocab_size": 2, "drafter.train_steps": 1, "drafter.loss.chunk_slots": 1, "train.global_batch": 1,
    "train.micro_batch": 1, "train.anchors": 1, "train.checkpoint_every": 1, "train.evaluate_every": 1,
    "train.keep_checkpoints": 1, "train.workers": 0, "train.heldout_samples": 0, "evaluate.max_new_tokens": 1,
    "evaluate.temperature": 0, "evaluate.bootstrap": 1,
    "evaluate.chunk_prompts": 1, "evaluate.batch": 1, "evaluate.profile_tokens": 1,
    "evaluate.profile_repeats": 1, "evaluate.calibration_prompts": 1,
    "study.max_new_tokens": 2, "study.requests_per_slot": 1, "study.least_requests": 1, "study.repeats": 1,
    "study.timing_tokens": 8, "study.simulated_requests_per_slot": 1, "study.simulated_prefill_tokens": 1,
}  # fmt: skip
# Keys of ``drafter`` in which an algorithm leaves no choice.
FIXED: dict[str, dict[str, Any]] = {name: algorithm.fixed for name, algorithm in ALGORITHMS.items()}
SHARES = (
    "data.heldout", "data.benchmark", "answers.top_p", "answers.min_p", "train.warmup", "train.min_lr",
    "evaluate.top_p", "evaluate.threshold", "study.threshold",
)  # fmt: skip


def check(config: Config) -> None:
    """Values out of range and contradictions between keys; raises ``ConfigError`` that names them."""
    for key, choices in CHOICES.items():
        value = _get(config, key)
        if value not in choices:
            raise ConfigError(f"{key}: expected one of {choices}, got {value!r}")
    for key, least in AT_LEAST.items():
        value = _get(config, key)
        if value is not None and value < least:
            raise ConfigError(f"{key}: expected at least {least}, got {value}")
    for key in SHARES:
        value = _get(config, key)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{key}: expected a share between 0 and 1, got {value}")
    for wrong, message in _contradictions(config):
        if wrong:
            raise ConfigError(message)


def _contradictions(config: Config) -> list[tuple[bool, str]]:
    train, data, answers, drafter = config.train, config.data, config.answers, config.drafter
    penalties = [n for n in ("presence_penalty", "frequency_penalty") if getattr(answers, n) is not None]
    return [
        (
            (train.steps is None) == (train.epochs is None),
            f"train.steps and train.epochs: expected exactly one of them, got {train.steps} and {train.epochs}",
        ),
        (
            data.heldout + data.benchmark >= 1,
            "data.heldout and data.benchmark: nothing would be left to train on",
        ),
        (
            answers.engine == "openai" and not answers.openai.base_urls,
            "answers.openai.base_urls: expected at least one URL such as http://127.0.0.1:8000/v1, got none",
        ),
        (
            answers.engine == "hf" and bool(penalties),
            f"answers.{(penalties or ['presence_penalty'])[0]}: only answers=openai has it",
        ),
        (config.ranks is not None and config.ranks < 1, f"ranks: expected at least 1, got {config.ranks}"),
        *_contradictions_in_target(config),
        *_contradictions_in_confidences(config),
        *_contradictions_in_drafter(drafter, config.target),
        *_contradictions_in_training(config),
        *_contradictions_in_evaluation(config.evaluate),
        *_contradictions_in_serving(config),
        *(_contradictions_in_export(config.export) if "export" in config.stage.steps else []),
        *(_contradictions_in_comparison(config.compare) if "compare" in config.stage.steps else []),
        *(
            _contradictions_in_study(config.study)
            if config.stage.steps == ["study"] or config.study.in_chain
            else []
        ),
    ]


def _contradictions_in_target(config: Config) -> list[tuple[bool, str]]:
    return [
        (
            not (config.target.path or config.target.package),
            "target.path: expected a Hub id or a folder, got nothing",
        ),
        (
            bool(config.target.package) != bool(config.target.gguf),
            "target.package and target.gguf: expected both or neither",
        ),
        (
            config.target.tensor_parallel > 1
            and "cache" in config.stage.steps
            and config.answers.engine == "hf",
            f"target.tensor_parallel={config.target.tensor_parallel}: answers in process need a whole target "
            "(answers=openai asks a server, answers=given takes those in the data)",
        ),
        (
            config.target.tensor_parallel > 1 and bool({"evaluate", "compare"} & set(config.stage.steps)),
            f"target.tensor_parallel={config.target.tensor_parallel}: evaluating needs a whole target",
        ),
    ]


def _contradictions_in_confidences(config: Config) -> list[tuple[bool, str]]:
    drafter = config.drafter
    return [
        (
            config.evaluate.threshold > 0 and not drafter.confidence_head,
            "evaluate.threshold: expected 0 with drafter.confidence_head=false (nothing to compare with)",
        ),
        *(
            (
                bool(getattr(config.evaluate, name)) and not drafter.confidence_head,
                f"evaluate.{name}=true: drafter.confidence_head=false leaves no confidences",
            )
            for name in ("calibrate", "sweep")
        ),
        (
            config.evaluate.calibrate is not False
            and drafter.confidence_head
            and config.data.heldout == 0
            and ("compare" in config.stage.steps or {"train", "evaluate"} <= set(config.stage.steps)),
            "data.heldout=0: the calibration needs held-out prompts; evaluate.calibrate=false goes without one",
        ),
        (
            len(config.stage.steps) > 1
            and "evaluate" in config.stage.steps
            and config.study.in_chain
            and config.study.calibrated
            and config.evaluate.calibrate is False
            and drafter.confidence_head,
            "evaluate.calibrate=false: the study that ends the chain schedules by calibrated confidences "
            "(study.calibrated=false takes the draft's own)",
        ),
    ]


def _contradictions_in_drafter(drafter: DrafterConfig, target: TargetConfig) -> list[tuple[bool, str]]:
    taps = target.num_taps if target.taps is None else len(target.taps)
    window, size = drafter.sliding_window, drafter.block_size
    fixed = [
        (
            getattr(drafter, key) != value,
            f"drafter.{key}={getattr(drafter, key)}: drafter.algorithm={drafter.algorithm} has {value}",
        )
        for key, value in FIXED.get(drafter.algorithm, {}).items()
    ]
    return [
        *fixed,
        (
            window is not None and window < size,
            f"drafter.sliding_window={window}: expected at least drafter.block_size={size}",
        ),
        (
            not drafter.sample_from_anchor and size < 2,
            "drafter.block_size: expected at least 2 with drafter.sample_from_anchor=false (slot 0 drafts nothing)",
        ),
        (
            drafter.num_taps == 0 and "num_taps" not in FIXED.get(drafter.algorithm, {}),
            f"drafter.num_taps=0: drafter.algorithm={drafter.algorithm} drafts from the target's taps",
        ),
        (
            (drafter.num_taps or 0) > taps,
            f"drafter.num_taps={drafter.num_taps}: the target has {taps} (target.taps, target.num_taps)",
        ),
        (
            drafter.markov_rank == 0 and drafter.markov_head != "vanilla",
            f"drafter.markov_head={drafter.markov_head}: drafter.markov_rank=0 leaves it out",
        ),
        (
            drafter.markov_rank == 0 and drafter.init.bigram is not None,
            "drafter.init.bigram: there is no Markov head to start (drafter.markov_rank=0)",
        ),
        (
            drafter.learned_start and drafter.markov_head != "rnn",
            f"drafter.learned_start: only drafter.markov_head=rnn has a state, got {drafter.markov_head}",
        ),
        (
            drafter.confidence_label != "soft" and not drafter.confidence_head,
            f"drafter.confidence_label={drafter.confidence_label}: drafter.confidence_head is false",
        ),
    ]


def _contradictions_in_training(config: Config) -> list[tuple[bool, str]]:
    train, ramp, capture = config.train, config.drafter.loss.ramp, config.capture
    return [
        (
            len(ramp) != 2 or not 0 <= ramp[0] <= ramp[1] <= 1,
            f"drafter.loss.ramp={list(ramp)}: expected two ascending shares of the run",
        ),
        (
            config.deepspeed.stage == 0 and config.deepspeed.offload_optimizer,
            "deepspeed.offload_optimizer: expected deepspeed.stage 1, 2 or 3, got 0",
        ),
        (len(train.betas) != 2, f"train.betas={list(train.betas)}: expected two numbers"),
        (train.lr <= 0, f"train.lr: expected a positive number, got {train.lr}"),
        (train.clip <= 0, f"train.clip: expected a positive number, got {train.clip}"),
        (
            capture.shard_tokens % capture.chunk_tokens != 0,
            f"capture.shard_tokens={capture.shard_tokens}: expected a multiple of capture.chunk_tokens="
            f"{capture.chunk_tokens}",
        ),
    ]


def _contradictions_in_evaluation(evaluate: EvaluateConfig) -> list[tuple[bool, str]]:
    unknown = [name for name in evaluate.benchmarks if name not in benchmark_names()]
    unasked = [name for name, file in evaluate.files.items() if file and name not in evaluate.benchmarks]
    return [
        (
            bool(unknown),
            f"evaluate.benchmarks: expected some of {benchmark_names()}, got {(unknown or [''])[0]}",
        ),
        (
            bool(unasked),
            f"evaluate.files.{(unasked or [''])[0]}: no such name in evaluate.benchmarks={evaluate.benchmarks}",
        ),
        (evaluate.top_p == 0, "evaluate.top_p: expected a share above 0, got 0"),
        (
            not evaluate.profile_contexts or min(evaluate.profile_contexts) < 1,
            f"evaluate.profile_contexts={evaluate.profile_contexts}: expected at least one number above 0",
        ),
    ]


def _contradictions_in_serving(config: Config) -> list[tuple[bool, str]]:
    """Of ``engine`` and ``server``: what the server does is its own affair, whatever ``evaluate`` says."""
    engine, evaluate = config.engine, config.evaluate
    in_process = {
        "evaluate.threshold": evaluate.threshold > 0,
        "evaluate.calibrate=true": evaluate.calibrate is True,
        "evaluate.sweep=true": evaluate.sweep,
        "evaluate.batch": evaluate.batch > 1,
        "profile=true": config.profile,
        "ranks": (config.ranks or 1) > 1,
    }
    return [
        (
            (engine is None) != (config.server is None),
            "engine and server: expected both (engine=vllm server=http://127.0.0.1:8000) or neither, got "
            f"engine={engine} and server={config.server}",
        ),
        (
            config.plain_server is not None and config.server is None,
            f"plain_server={config.plain_server}: expected engine and server as well",
        ),
        (
            config.plain_server is not None and config.plain_server == config.server,
            f"plain_server={config.plain_server}: expected another server than server, one without the draft",
        ),
        (
            config.plain_server is not None and not evaluate.baseline,
            f"plain_server={config.plain_server}: evaluate.baseline=false asks for no plain answers",
        ),
        (
            engine is not None and config.stage.steps != ["evaluate"],
            f"engine={engine}: only stage=evaluate asks a server (answers=openai lets one answer for the cache)",
        ),
        *(
            (
                engine is not None and given,
                f"{key}: a server (engine={engine}) does not let itself be told that",
            )
            for key, given in in_process.items()
        ),
    ]


def _contradictions_in_export(export: ExportConfig) -> list[tuple[bool, str]]:
    wrong = [form for form in export.formats if form not in FORMATS]
    return [
        (
            not export.formats or bool(wrong) or len(set(export.formats)) < len(export.formats),
            f"export.formats: expected some of {FORMATS}, each once, got {list(export.formats)}",
        ),
        (
            export.name is not None and len(export.formats) > 1,
            f"export.name={export.name}: one name for {len(export.formats)} formats",
        ),
        (
            export.push and ("hub" not in export.formats or not export.repo),
            "export.push=true: expected export=hub and export.repo=owner/name",
        ),
        (
            export.converter is not None and "llama_cpp" not in export.formats,
            "export.converter: only export=llama_cpp has GGUF files",
        ),
    ]


def _contradictions_in_comparison(compare: CompareConfig) -> list[tuple[bool, str]]:
    known = list(compare.drafters)
    figures = {f"compare.figures.{name}": figure for name, figure in compare.figures.items()}
    names = {"compare.table": compare.table} | {f"{key}.drafters": f.drafters for key, f in figures.items()}
    lists: dict[str, list[Any]] = {**names, **{f"{key}.values": f.values for key, f in figures.items()}}
    found: list[tuple[bool, str]] = []
    for key, values in lists.items():
        found.append(
            (not values, f"{key}: expected at least one (see experiment=compare_drafters), got none")
        )
        found.append((len(set(values)) < len(values), f"{key}: expected each one once, got {values}"))
    for key, drafters in names.items():
        message = f"{key}: expected some of compare.drafters={known}, got"
        found += [(name not in known, f"{message} {name}") for name in drafters]
    return found


def _contradictions_in_study(study: StudyConfig) -> list[tuple[bool, str]]:
    asked: list[tuple[str, list[Any]]] = [
        ("policies", study.policies),
        ("concurrencies", study.concurrencies),
    ]
    if study.simulate and study.sps:
        asked.append(("simulated_concurrencies", study.simulated_concurrencies))
    found: list[tuple[bool, str]] = []
    for name, values in asked:
        found.append((not values, f"study.{name}: expected at least one (see conf/study), got none"))
        found.append((len(set(values)) < len(values), f"study.{name}: expected each one once, got {values}"))
    for name in ("concurrencies", "simulated_concurrencies", "sla", "arrivals"):
        numbers = getattr(study, name)
        found.append((min(numbers, default=1) <= 0, f"study.{name}: expected numbers above 0, got {numbers}"))
    return found


def _get(config: Any, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)
