from pathlib import Path

import pytest
import tiny
import tiny_targets
import transformers as hf
from tiny_errors import refused
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, LlavaConfig

from pipeline.config import ConfigError
from pipeline.target.architecture import auto_class, empty_model, model_errors, model_parts

NAMES = {
    "llama": ("model.embed_tokens", "lm_head", "model.norm"),
    "nemotron_h": ("model.embeddings", "lm_head", "model.norm_f"),
    "lfm2": ("model.embed_tokens", "lm_head", "model.embedding_norm"),
    "qwen3_vl": ("model.language_model.embed_tokens", "lm_head", "model.language_model.norm"),
}


@pytest.mark.parametrize("family", NAMES)
def test_names_come_from_the_class_and_nothing_is_loaded(family: str, tmp_path: Path) -> None:
    folder = tiny_targets.save(family, tmp_path)
    model = empty_model(folder, tiny.located(folder))
    names = {module: name for name, module in model.named_modules()}
    parts = model_parts(model)
    assert tuple(names[part] for part in (parts.embedding, parts.head, parts.final_norm)) == NAMES[family]
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


SIZES = {"vocab_size": tiny.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}


def gpt2() -> object:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=272, n_embd=32, n_layer=2, n_head=2))


def mamba() -> object:
    return hf.MambaForCausalLM(hf.MambaConfig(**SIZES, state_size=4))


def t5() -> object:
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=272, d_model=32, num_layers=1, num_heads=2))


def bert() -> object:
    return hf.BertModel(hf.BertConfig(**SIZES, num_attention_heads=2, intermediate_size=32))


@pytest.mark.parametrize("make", [gpt2, mamba, t5, bert])
def test_a_model_that_cannot_be_a_target_is_refused_by_name(make: object, tmp_path: Path) -> None:
    """By its class alone, before any answer is made."""
    make().save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as error:
        empty_model(tmp_path, tiny.located(tmp_path))
    assert str(tmp_path) in str(error.value) and make.__name__ in str(error.value).lower()


def test_text_and_multimodal_classes() -> None:
    assert auto_class(tiny.target_config()) is AutoModelForCausalLM
    assert auto_class(tiny_targets.gemma3_multimodal().config) is AutoModelForCausalLM, (
        "it has a class of both kinds"
    )
    assert auto_class(LlavaConfig()) is AutoModelForImageTextToText


def test_refusals_of_transformers_name_the_target(tmp_path: Path) -> None:
    cfg = tiny.located(tmp_path, attention="sdpa")
    with (
        refused(ConfigError, f"target.path={tmp_path}", "target.attention=sdpa"),
        model_errors(tmp_path, cfg),
    ):
        raise ValueError("no such attention")
