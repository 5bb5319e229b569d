import pytest
import tiny_targets
import torch
from tiny_errors import refused

from pipeline.config import TargetConfig
from pipeline.target.model import Target
from pipeline.target.rewind import RewindCache

CLOSE = 1e-4  # for fp32 states up to 30


class Counted:
    """Stands for transformers' cache: it counts the positions that it holds."""

    def __init__(self) -> None:
        self.positions = 0


def run(cache: RewindCache, *ids: int) -> list[int]:
    """The tokens that a target would run for ``ids``."""
    fed = cache.take(torch.tensor([ids]))
    cache.cache.positions += fed.shape[1]
    assert cache.cache.positions == cache.get_seq_length()
    return fed[0].tolist()


def test_kept_tokens_of_the_last_run_go_in_front_of_the_next_ones() -> None:
    cache = RewindCache(Counted)
    assert run(cache, 1, 2, 3) == [1, 2, 3]
    assert run(cache, 4, 5, 6) == [4, 5, 6]
    cache.crop(4)
    assert (cache.get_seq_length(), cache.cache.positions) == (4, 3)
    assert run(cache, 7) == [4, 7]
    cache.crop(5)  # nothing is removed
    assert run(cache, 8, 9) == [8, 9]


def test_a_second_crop_takes_tokens_back_that_wait() -> None:
    cache = RewindCache(Counted)
    run(cache, 1, 2)
    run(cache, 3, 4, 5)
    cache.crop(4)
    cache.crop(3)
    assert run(cache, 6) == [3, 6]


def test_a_crop_to_before_the_last_run_starts_from_nothing() -> None:
    cache = RewindCache(Counted)
    run(cache, 1, 2)
    run(cache, 3)
    cache.crop(1)
    assert run(cache, 9) == [1, 9]
    cache.crop(0)
    assert cache.get_seq_length() == 0
    assert run(cache, 5) == [5]


# --- DeepSeek-V4 ---


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tiny_targets.save("deepseek_v4", tmp_path_factory.mktemp("deepseek"))
    return Target.load(TargetConfig(name="tiny", path=str(folder), dtype="float32", device="cpu"), [0])


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(1))


def test_compressors_go_back_to_before_the_last_run_too(deepseek: Target, ids: torch.Tensor) -> None:
    whole, cache = deepseek.run(ids), deepseek.new_cache()
    for end in (15, 22, 30):
        deepseek.run(ids[:, cache.get_seq_length() : end], cache=cache)
    deepseek.crop(cache, 17)
    rest = deepseek.run(ids[:, 17:], cache=cache)
    assert torch.allclose(rest.last_hidden, whole.last_hidden[:, 17:], atol=CLOSE)
    with refused(ValueError, "crop", 40, 41):
        deepseek.crop(cache, 41)


def test_a_sequence_of_a_batch_goes_on_alone(deepseek: Target, ids: torch.Tensor) -> None:
    """transformers' own selection of rows leaves the compressors' states behind."""
    other = (ids + 7) % 256
    cache = deepseek.new_cache()
    deepseek.run(torch.cat([other, ids])[:, :18], cache=cache)
    cache.batch_select_indices(torch.tensor([1]))
    rest = deepseek.run(ids[:, 18:25], cache=cache)
    whole = deepseek.run(ids)
    assert torch.allclose(rest.last_hidden, whole.last_hidden[:, 18:25], atol=CLOSE)
    deepseek.crop(cache, 11)
    rest = deepseek.run(ids[:, 11:], cache=cache)
    assert torch.allclose(rest.last_hidden, whole.last_hidden[:, 11:], atol=CLOSE)
