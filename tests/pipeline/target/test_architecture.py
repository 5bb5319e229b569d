from pathlib import Path

import pytest
import tiny
import tiny_targets
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BertConfig,
    BertLMHeadModel,
    LlavaConfig,
)

from pipeline.config import ConfigError
from pipeline.target.architecture import auto_class, check_usable, empty_model, model_errors, model_parts


def test_a_model_without_weights(target_folder: Path) -> None:
    model = empty_model(target_folder, tiny.located(target_folder))
    assert all(weight.device == torch.device("meta") for weight in model.parameters())
    parts = model_parts(model)
    assert list(parts.modules) == ["embedding", "head", "final_norm"]
    assert parts.embedding is model.model.embed_tokens
    assert parts.head is model.lm_head
    assert parts.final_norm is model.model.norm


def test_text_and_multimodal_classes() -> None:
    assert auto_class(tiny.target_config()) is AutoModelForCausalLM
    assert auto_class(tiny_targets.gemma3_multimodal().config) is AutoModelForCausalLM, (
        "it has a class of both kinds"
    )
    assert auto_class(LlavaConfig()) is AutoModelForImageTextToText


def test_a_model_without_a_decoder_is_named(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = BertLMHeadModel(BertConfig(num_hidden_layers=1))
    with pytest.raises(ConfigError, match=f"{tmp_path}.*BertLMHeadModel"):
        check_usable(model, tmp_path)


def test_refusals_of_transformers_name_the_target(tmp_path: Path) -> None:
    cfg = tiny.located(tmp_path, attention="sdpa")
    key = f"target.path={tmp_path}.*target.attention=sdpa"
    with pytest.raises(ConfigError, match=key), model_errors(tmp_path, cfg):
        raise ValueError("no such attention")
