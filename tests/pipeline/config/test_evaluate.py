import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import EvaluateConfig, section
from pipeline.config.evaluate import benchmark_names

BARE = "drafter.confidence_head=false"


def test_defaults():
    fields = section(EvaluateConfig())
    assert set(fields.pop("files").values()) == {None}
    assert fields == {
        "benchmarks": [], "prompts": None, "max_new_tokens": 2048, "temperature": 0.0, "top_p": None,
        "top_k": None, "min_p": None, "draft_sampling": "target", "threshold": 0.0, "calibrate": None,
        "calibration_prompts": 64,
        "sweep": False, "baseline": True, "bootstrap": 1000, "batch": 1, "chunk_prompts": 4, "profile": False,
        "profile_tokens": 128, "profile_contexts": [128, 512], "profile_repeats": 7,
    }  # fmt: skip


def test_every_benchmark_may_have_a_file():
    assert {"gsm8k", "mt_bench", "quickstart_math"} <= set(benchmark_names())
    assert list(EvaluateConfig().files) == benchmark_names()


@pytest.mark.parametrize(
    "override",
    [
        "evaluate.benchmarks=['gsm8k', 'gsm8k']",
        "evaluate.prompts=0",
        "evaluate.max_new_tokens=0",
        "evaluate.temperature=-1.0",
        "evaluate.top_p=0.0",
        "evaluate.top_p=1.5",
        "evaluate.top_k=0",
        "evaluate.min_p=1.5",
        "evaluate.draft_sampling=loud",
        "evaluate.threshold=1.5",
        "evaluate.threshold=-0.5",
        "evaluate.bootstrap=0",
        "evaluate.batch=0",
        "evaluate.calibration_prompts=0",
        "evaluate.chunk_prompts=0",
        "evaluate.profile_tokens=0",
        "evaluate.profile_contexts=[]",
        "evaluate.profile_repeats=0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


def test_an_element_out_of_its_range_is_named():
    assert out_of_range("evaluate.benchmarks=[gsm8k,gsm9k]") == "evaluate.benchmarks[1]=gsm9k"
    assert out_of_range("evaluate.profile_contexts=[0]") == "evaluate.profile_contexts[0]=0"


@pytest.mark.parametrize(
    "override",
    [
        "evaluate.benchmarks=['gsm8k']",
        "evaluate.prompts=1",
        "evaluate.temperature=0.0",
        "evaluate.top_p=1.0",
        "evaluate.top_k=1",
        "evaluate.min_p=0.0",
        "evaluate.threshold=1.0",
        "evaluate.profile_contexts=[1]",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize(
    "overrides,keys",
    [
        (["evaluate.benchmarks=[]"], ["evaluate.benchmarks:"]),
        (["stage=evaluate", "evaluate.benchmarks=[]"], ["evaluate.benchmarks:"]),
        (["stage=study", "evaluate.benchmarks=[]"], ["evaluate.benchmarks:"]),
        (["evaluate.files.mbpp=x.jsonl", "evaluate.benchmarks=[gsm8k]"], ["evaluate.files.mbpp:", "gsm8k"]),
        (["evaluate.benchmarks=[mine]"], ["evaluate.benchmarks[0]:", "evaluate.files.mine", "own", "gsm8k"]),
        (["evaluate.benchmarks=[macro]", "evaluate.files.macro=x"], ["evaluate.benchmarks[0]:", "macro"]),
        (["evaluate.benchmarks=['../x']", "evaluate.files={../x: y}"], ["evaluate.benchmarks[0]:", "../x"]),
        (["evaluate.benchmarks=[own]", "evaluate.files.own=x"], ["evaluate.files.own:", "data.benchmark"]),
        (["evaluate.benchmarks=[own]", "data.benchmark=0"], ["data.benchmark=0:", "[own]"]),
        ([BARE, "evaluate.threshold=0.5"], ["evaluate.threshold:", BARE]),
        ([BARE, "evaluate.calibrate=true"], ["evaluate.calibrate=true:", "drafter.confidence_head"]),
        ([BARE, "evaluate.sweep=true"], ["evaluate.sweep=true:", "drafter.confidence_head"]),
        (["data.heldout=0"], ["data.heldout=0", "evaluate.calibrate=false"]),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], keys: list[str]):
    assert lacking(refusal(*overrides), keys) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["stage=train", "evaluate.benchmarks=[]"],
        ["data.heldout=0", "evaluate.calibrate=false"],
        ["data.heldout=0", BARE],
        ["data.heldout=0", "stage=evaluate"],
        [BARE, "evaluate.calibrate=false"],
        ["evaluate.benchmarks=[mine,own,gsm8k]", "evaluate.files.mine=x.csv"],
    ],
)
def test_what_is_no_contradiction(overrides: list[str]):
    assert composed(*overrides)
