"""Many sequences in one pass give each sequence the states that it has alone, for targets of every family."""

from pathlib import Path

import pytest
import tiny_targets
import torch
from tiny_errors import refused

from pipeline.config import ConfigError, TargetConfig
from pipeline.target.model import Target
from pipeline.target.ragged import RaggedTarget

# Of the others: these keep more than keys and values.
ALONE = {
    "deepseek_v4", "qwen3_next", "qwen3_5", "glm_moe_dsa", "granite_hybrid", "falcon_h1", "nemotron_h", "lfm2",
    "kimi_linear",
}  # fmt: skip
RAGGED = [name for name in tiny_targets.FAMILIES if name not in ALONE]
# Of three sequences in slots 2, 0, 1: the tokens of each that a pass brings (0: it is left out).
PASSES = [(5, 30, 1), (1, 0, 12), (7, 4, 1), (0, 1, 3)]


def loaded(family: str, folder: Path) -> Target:
    path = tiny_targets.save(family, folder / "target")
    return Target.load(TargetConfig(name="t", path=str(path), dtype="float32", device="cpu"), [0, 2])


@pytest.mark.parametrize("family", RAGGED)
def test_a_ragged_pass_gives_the_states_of_each_sequence_alone(family: str, tmp_path: Path) -> None:
    """Windows of 8 are left behind, groups of queries share keys, gpt-oss has its sinks."""
    target = loaded(family, tmp_path)
    ids = [torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    alone = [target.run(each[None]) for each in ids]
    ragged, slots, done = RaggedTarget(target, slots=3, capacity=64), (2, 0, 1), [0, 0, 0]
    for counts in PASSES:
        taken = [(s, n) for s, n in enumerate(counts) if n]
        pieces = [ids[s][done[s] : done[s] + n] for s, n in taken]
        with ragged.attention():
            made = ragged.run([slots[s] for s, _ in taken], [n for _, n in taken], torch.cat(pieces))
        first = 0
        for s, n in taken:
            expected = (
                alone[s].hidden[0, done[s] : done[s] + n],
                alone[s].last_hidden[0, done[s] : done[s] + n],
            )
            assert torch.allclose(made.hidden[first : first + n], expected[0], atol=2e-5)
            assert torch.allclose(made.last_hidden[first : first + n], expected[1], atol=2e-5)
            done[s], first = done[s] + n, first + n
    assert [ragged.lengths[slot] for slot in slots] == [13, 35, 17]
    assert torch.equal(
        target.run(ids[0][None]).last_hidden, alone[0].last_hidden
    )  # its own attention is back


def test_what_was_rejected_is_written_over(tmp_path: Path) -> None:
    target = loaded("llama", tmp_path)
    ids = torch.arange(20)
    ragged = RaggedTarget(target, slots=1, capacity=32)
    with ragged.attention():
        ragged.run([0], [10], torch.cat([ids[:6], torch.tensor([99, 98, 97, 96])]))
        ragged.keep(0, 6)
        made = ragged.run([0], [14], ids[6:])
    expected = target.run(ids[None]).last_hidden[0, 6:]
    assert torch.allclose(made.last_hidden, expected, atol=2e-5)


def test_a_target_that_keeps_more_than_keys_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "DeepseekV4ForCausalLM", "evaluate.batch=1"):
        RaggedTarget(loaded("deepseek_v4", tmp_path), slots=1, capacity=8)
