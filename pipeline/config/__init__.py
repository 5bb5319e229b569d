"""The typed schema of every config group: ranges on the fields, contradictions in the file of their group.

An unknown key, a value out of its range or a contradiction is a ``ConfigError`` that names the key.
"""

from pipeline.config.answers import AnswersConfig, AskingConfig, ClientConfig, OpenAIConfig
from pipeline.config.capture import CaptureConfig, VllmConfig
from pipeline.config.compare import CompareConfig, FigureConfig
from pipeline.config.data import DataConfig, SourceConfig
from pipeline.config.drafter import DrafterConfig, InitConfig, LossConfig
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.export import ExportConfig
from pipeline.config.keys import explained
from pipeline.config.rules import ConfigError
from pipeline.config.study import StudyConfig
from pipeline.config.target import TargetConfig
from pipeline.config.train import DeepSpeedConfig, TrainConfig
from pipeline.config.whole import (
    Config,
    StageConfig,
    TrackingConfig,
    check,
    refuse_own_secrets,
    register,
    resolve,
    section,
)

__all__ = [
    "AnswersConfig", "AskingConfig", "CaptureConfig", "ClientConfig", "CompareConfig", "Config", "ConfigError",
    "DataConfig", "DeepSpeedConfig", "DrafterConfig", "EvaluateConfig", "ExportConfig", "FigureConfig", "InitConfig",
    "LossConfig", "OpenAIConfig", "SourceConfig", "StageConfig", "StudyConfig", "TargetConfig", "TrackingConfig",
    "TrainConfig", "VllmConfig", "check", "explained", "refuse_own_secrets", "register", "resolve",
    "section",
]  # fmt: skip
