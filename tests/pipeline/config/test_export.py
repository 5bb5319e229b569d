import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import ExportConfig, section


def test_defaults():
    assert section(ExportConfig(["vllm"])) == {
        "formats": ["vllm"], "name": None, "target": None, "converter": None, "python": None, "outtype": "auto",
        "repo": None, "push": False, "private": True, "license": None,
    }  # fmt: skip


def test_a_value_out_of_its_range_is_named():
    assert out_of_range("export.formats=[onnx]") == "export.formats[0]=onnx"
    for override in ("export.formats=['vllm', 'vllm']", "export.outtype=q8_0"):
        assert out_of_range(override) == override


@pytest.mark.parametrize("outtype", ["auto", "f32", "bf16", "f16"])
def test_the_numbers_of_a_gguf_file(outtype: str):
    assert accepted(f"export.outtype={outtype}") == f"export.outtype={outtype}"


@pytest.mark.parametrize(
    "overrides,keys",
    [
        (["formats=[]"], ["export.formats:"]),
        (["formats=[vllm,mlx]", "name=x"], ["export.name=x:"]),
        (["push=true"], ["export.push=true:", "export.repo"]),
        (["push=true", "formats=[hub]"], ["export.push=true:", "export.repo"]),
        (["push=true", "repo=me/draft"], ["export.push=true:", "export=hub"]),
        (["converter=x"], ["export.converter:", "llama_cpp"]),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], keys: list[str]):
    given = [f"export.{override}" for override in overrides]
    assert lacking(refusal("stage=export", *given), keys) == []
    assert composed("stage=train", *given)


@pytest.mark.parametrize(
    "overrides",
    [
        ["export.name=x"],
        ["export.formats=[hub]", "export.push=true", "export.repo=me/draft"],
        ["export.formats=[vllm,llama_cpp]", "export.converter=x"],
    ],
)
def test_what_is_no_contradiction(overrides: list[str]):
    assert composed("stage=export", *overrides)
