"""A profile is measured once, and what simulations take of it always lies beside it."""

from types import SimpleNamespace

import pytest
import tiny_summary

from data_specs.manifest import read_json
from data_specs.results.records import to_json
from data_specs.sps import read_table
from pipeline.config import EvaluateConfig
from pipeline.decoding import profiling, step_costs
from pipeline.decoding.profiling import obtain

MADE = tiny_summary.profile_record([(16, [(1, 0.5), (2, 1.0)], [0.5, 1.0])], block=3)
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
    assert read_json(tmp_path / profiling.PROFILE) == to_json(MADE)
    (tmp_path / profiling.TABLE).unlink()  # as a run leaves it that was killed between the two
    assert obtain(tmp_path, speaker, SETTINGS, "tiny") == MADE and len(asked) == 1
    table = read_table(tmp_path / profiling.TABLE)
    assert (table.name, table.model, table.machine) == ("tiny_here", "tiny", "a <CPU>")
    assert table.points == ((1, 2.0), (2, 1.0))
