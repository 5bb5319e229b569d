"""A loaded target and draft: what they are asked, how the machine is timed around a point, what is recorded."""

import dataclasses
import json

import numpy as np
import pytest
import tiny
import tiny_study
from tiny_errors import refused

from data_specs.calibration import CalibrationFileError, write_calibration
from pipeline.config import ConfigError
from pipeline.decoding.job import make_job
from pipeline.decoding.sampling import Sampler
from pipeline.prompts.benchmarks import load_benchmark, load_prompts
from pipeline.store.artifacts import Store
from pipeline.target.model import Target
from stages.study import measure
from stages.study.measure import InProcessServer, load_ids, temperatures_of
from stages.study.points import Arm, StudyPoint

PROMPTS = [(10, 11, 12), (13, 14, 15, 16, 17)]
PLAIN, CHAIN = Arm("plain", 0), Arm("fixed_2", 2)


@pytest.fixture
def config(target_folder, tmp_path):
    made = tiny_study.config_of(target_folder, tmp_path)
    made.evaluate.calibrate = False  # a study fits nothing
    return made


@pytest.fixture(scope="module")
def folder(target_folder, tmp_path_factory):
    return tiny_study.draft_in(tmp_path_factory.mktemp("drafts") / "tiny-draft", target_folder)


@pytest.fixture(scope="module")
def models(target_folder):
    return Target.load(tiny.located(target_folder), [0, 2]), tiny.draft(block_size=3).eval()


def server(config, models, sampler=None, temperatures=None):
    return InProcessServer(*models, PROMPTS, sampler or Sampler(), temperatures, config)


# --- what is asked ----------------------------------------------------------------------------------------


def test_the_first_turns_of_all_benchmarks_in_turn(config, tmp_path):
    chat = tmp_path / "chat.jsonl"
    chat.write_text(
        "".join(json.dumps({"turns": turns}) + "\n" for turns in (["A?", "More."], ["B?"], ["C?"], ["D?"]))
    )
    config.evaluate.benchmarks = ["gsm8k", "mt_bench"]
    config.evaluate.files["mt_bench"] = str(chat)
    config.evaluate.prompts = None
    job = make_job(config, tiny_study.draft_in(tmp_path / "draft", config.target.path))
    texts = [tiny.tokenizer().decode(ids) for ids in load_ids(config, job, tiny.tokenizer())]
    asked = [text.split("user\n")[1].split("<|im_end|>")[0] for text in texts]
    assert ["and" in text for text in asked] == [True, False, True, False, True, False, False]
    assert sorted(asked[1::2] + asked[6:]) == ["A?", "B?", "C?", "D?"]  # of a dialogue its first turn
    assert all(text.count("<|im_start|>") == 2 and text.endswith("<|im_start|>assistant\n") for text in texts)


def test_a_prompt_that_the_template_refuses_is_named(config, folder):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ raise_exception('not this one') }}"
    with pytest.raises(ConfigError, match=r"gsm8k.*\b[0-2]\b.*not this one"):
        load_ids(config, make_job(config, folder), tokenizer)


def test_prompts_that_leave_no_room_for_answers_are_refused(config, folder):
    job = make_job(config, folder)
    loaded = InProcessServer.load(config, job, None)
    longest = max(map(len, loaded.prompts))
    assert len(loaded.prompts) == 3 and loaded.draft.max_drafts == 3 and loaded.target.taps == [0, 2]
    config.study.max_new_tokens = 2048 - longest
    InProcessServer.load(config, job, None)
    config.study.max_new_tokens += 1
    with refused(ConfigError, f"study.max_new_tokens={2049 - longest}", longest, 2048):
        InProcessServer.load(config, job, None)


# --- temperatures -----------------------------------------------------------------------------------------


def test_temperatures_are_the_calibrations_unless_they_are_not_wanted(config, folder, target_folder):
    write_calibration(folder, tiny_study.calibration_of(folder, target_folder, [2.0, 1.5, 1.0]))
    job = make_job(config, folder)
    config.study.calibrated = False
    assert temperatures_of(config, Store(config.artifacts), job, 3) is None
    config.study.calibrated = True
    assert temperatures_of(config, Store(config.artifacts), job, 3) == [
        2.0,
        1.5,
        1.0,
    ]  # of another type, which only rounds


def test_a_foreign_calibration_is_refused_by_name(config, folder, target_folder):
    config.study.calibrated, job = True, make_job(config, folder)
    made = tiny_study.calibration_of(folder, target_folder, [1000.0] * 3)
    key = load_prompts(load_benchmark("gsm8k"), config.evaluate.files["gsm8k"])[1].key
    for change, named in (
        ({"target": "u" * 64}, ["target", "uuuuuuuuuuuu"]),
        ({"sampler": {"temperature": 1.0}}, ["sampler", {"temperature": 0.0}, {"temperature": 1.0}]),
        ({"thinking": True}, ["thinking", None, True]),
        ({"keys": ["k", key]}, ["keys", 1]),
    ):
        write_calibration(folder, dataclasses.replace(made, **change))
        with refused(CalibrationFileError, folder / "calibration.json", *named):
            temperatures_of(config, Store(config.artifacts), job, 3)


# --- a point ----------------------------------------------------------------------------------------------


@pytest.fixture
def timings(monkeypatch):
    """The slots at which the machine was timed."""
    found, real = [], measure.time_steps

    def counted(make, prompts, slots, drafts, tokens):
        found.append((slots, drafts, tokens))
        return real(make, prompts, slots, drafts, tokens)

    monkeypatch.setattr(measure, "time_steps", counted)
    return found


def test_the_timing_after_a_point_is_that_before_the_next(config, models, timings):
    served = server(config, models)
    first = served.measure(StudyPoint(PLAIN, 2, 0), 3, predicted=True)
    second = served.measure(StudyPoint(CHAIN, 2, 0), 3, predicted=True)
    assert timings == [(2, 3, 8)] * 3 and second.before is first.after
    served.measure(StudyPoint(CHAIN, 1, 0), 3, predicted=True)
    assert timings[3:] == [(1, 3, 8)] * 2  # of another concurrency
    assert [times.number for times in first.times] == [0, 1, 2]
    assert all(1 <= times.tokens <= 6 for times in first.times)
    assert {step.drafted for step in first.steps} == {0}
    assert max(step.drafted / max(1, step.requests) for step in second.steps) == 2
    assert max(step.requests for step in second.steps) == 2


def test_without_a_prediction_the_machine_is_timed_once_a_concurrency(config, models, timings):
    config.study.simulate = False
    served = server(config, models)
    for arm in (PLAIN, CHAIN):
        point = served.measure(StudyPoint(arm, 2, 0), 3, predicted=False)
        assert point.after == [] and point.before
    assert timings == [(2, 3, 8)]
    assert {step.pace for step in point.steps} == {1.0}  # and how fast it was in between is nobody's question


def test_the_reference_pass_is_made_once_a_concurrency(config, models):
    served = server(config, models)
    one = served.reference(2)
    assert served.reference(2) is one and one.counts == [2, 2]  # an anchor and half of the drafts
    assert served.engine(None, 2, 3).reference is one
    assert served.reference(3).counts == [2, 2, 2]


# --- the pool ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.0)])
def test_every_position_of_every_answer_is_recorded(config, models, sampler):
    found = server(config, models, sampler).record(2)
    assert [answer.prompt for answer in found] == [3, 5]
    for answer in found:
        assert answer.limit == 6 and 1 <= answer.length <= 6
        assert answer.confidences.shape == (answer.length - 1, 3)


def test_recorded_confidences_are_calibrated(config, models):
    """At a high temperature every confidence is a half."""
    raw = server(config, models).record(2)
    flat = server(config, models, temperatures=[1e9] * 3).record(2)
    assert np.concatenate([answer.confidences for answer in flat]) == pytest.approx(0.5)
    for one, other in zip(raw, flat, strict=True):
        assert one.held.tolist() == other.held.tolist()
        assert not np.allclose(one.confidences, 0.5)


def test_warming_up_runs_everything_and_is_no_timing(config, models, monkeypatch):
    served, made = server(config, models), []
    engine = served.engine
    monkeypatch.setattr(served, "engine", lambda *asked: made.append(engine(*asked)) or made[-1])
    served.warm_up()
    (warm,) = made
    assert max(step.drafted for step in warm.steps) > 0 and served.last == {}
