"""A profile is measured once, and what simulations take of it always lies beside it."""

from types import SimpleNamespace

import pytest

from data_specs.manifest import read_json
from data_specs.sps import read_table
from pipeline.config import EvaluateConfig
from pipeline.decoding import profiling, step_costs
from pipeline.decoding.profiling import obtain

POINTS = [{"tokens": 1}, {"tokens": 2}]
DRAFT = [{"requests": 1, "seconds": 0.25, "interval": [0.2, 0.3]}]
MADE = {
    "machine": {"device": "a CPU"}, "block": 3, "repeats": 5,
    "contexts": [{"context": 16, "points": POINTS, "fit": [0.5, 1.0], "draft": DRAFT}],
}  # fmt: skip
SETTINGS = EvaluateConfig(profile_tokens=6, profile_contexts=[64, 16], profile_repeats=5)


@pytest.fixture
def asked(monkeypatch):
    """What is asked to be measured; nothing is."""
    found = []

    def measure(target, draft, most, contexts, repeats, advance):
        found.append((target, draft, most, contexts, repeats))
        advance()
        return MADE

    monkeypatch.setattr(step_costs, "measure", measure)
    return found


def test_a_profile_is_measured_once(tmp_path, asked):
    speaker = SimpleNamespace(target="the target", draft="the draft")
    assert obtain(tmp_path, speaker, SETTINGS, "tiny") == MADE
    assert asked == [("the target", "the draft", 6, [16, 64], 5)]  # contexts ascend
    assert read_json(tmp_path / profiling.PROFILE) == MADE
    (tmp_path / profiling.TABLE).unlink()  # as a run leaves it that was killed between the two
    assert obtain(tmp_path, speaker, SETTINGS, "tiny") == MADE and len(asked) == 1
    table = read_table(tmp_path / profiling.TABLE)
    assert (table.name, table.model, table.machine) == ("tiny_here", "tiny", "a CPU")
    assert table.points == ((1, 2.0), (2, 1.0))
