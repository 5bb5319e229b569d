"""Names that stand in export folders: other versions of draftline and the engines read them."""

import pytest
from composing import CONF, composed

from data_specs import export


def test_every_format_can_be_chosen():
    assert set(export.FORMATS) == {"vllm", "sglang", "llama_cpp", "mlx", "speculators", "hub"}
    assert {path.stem for path in (CONF / "export").glob("*.yaml")} == set(export.FORMATS)


@pytest.mark.parametrize("name", export.FORMATS)
def test_a_choice_is_the_format_of_its_name(name: str):
    assert composed(f"export={name}").export.formats == [name]


def test_the_names_in_a_folder():
    assert export.SCHEMA_VERSION == 1
    assert (export.PROVENANCE, export.CARD) == ("provenance.json", "README.md")
    assert (export.DRAFT_GGUF, export.TARGET_GGUF) == ("draft.gguf", "target.gguf")


def test_a_head_of_zeros_has_its_mark_and_a_rank_that_quantises():
    assert (export.ZERO_HEAD, export.ZERO_HEAD_RANK) == ("zero_markov_head", 64)


def test_a_foreign_eagle3_has_the_paper_s_seven_steps():
    assert export.EAGLE3_STEPS == 7
