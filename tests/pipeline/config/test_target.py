import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import TargetConfig, section


def test_defaults():
    assert section(TargetConfig("mine", "/models/mine")) == {
        "name": "mine", "path": "/models/mine", "revision": None, "adapter": None, "dtype": "bfloat16",
        "taps": None, "num_taps": 5, "mask_token_id": None, "thinking": None, "template_kwargs": {}, "device": "auto",
        "tensor_parallel": 1, "attention": "auto", "trust_remote_code": False, "package": None, "gguf": None,
    }  # fmt: skip


def test_targets():
    assert composed("target=qwen3_4b").target.path == "Qwen/Qwen3-4B"
    assert composed("target=hf", "target.path=/models/mine").target.path == "/models/mine"


@pytest.mark.parametrize(
    "override",
    [
        "target.dtype=int8",
        "target.taps=[]",
        "target.taps=[1, 1]",
        "target.num_taps=0",
        "target.mask_token_id=-1",
        "target.device=tpu",
        "target.tensor_parallel=0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


def test_a_tap_below_the_embedding_is_named():
    assert out_of_range("target.taps=[3,-2]") == "target.taps[1]=-2"


@pytest.mark.parametrize(
    "override",
    [
        "target.dtype=float32",
        "target.taps=[-1]",
        "target.num_taps=1",
        "target.mask_token_id=0",
        "target.device=cpu",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize(
    "overrides,keys",
    [
        (["target.package=null", "target.gguf=null"], ["target.path:"]),
        (["target.gguf=null"], ["target.package", "target.gguf"]),
        (["target.package=null", "target.path=x"], ["target.package", "target.gguf"]),
        (["target.tensor_parallel=2"], ["target.tensor_parallel=2:", "answers=hf"]),
        (["stage=evaluate", "target.tensor_parallel=2"], ["target.tensor_parallel=2:"]),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], keys: list[str]):
    assert lacking(refusal(*overrides), keys) == []


@pytest.mark.parametrize("where", [["stage=train"], ["stage=cache", "answers=given"]])
def test_ranks_may_hold_a_target_together_that_only_gives_states(where: list[str]):
    assert composed(*where, "target.tensor_parallel=2").target.tensor_parallel == 2


def test_what_the_template_is_told_is_thinking_alone_where_there_is_no_more():
    """Fingerprints from before ``template_kwargs`` stay."""
    assert TargetConfig("mine", "/m", thinking=False).rendering is False
    assert TargetConfig("mine", "/m", template_kwargs={"style": "t"}).rendering == [None, {"style": "t"}]
