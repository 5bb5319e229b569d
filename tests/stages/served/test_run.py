"""The stage with a fake server: artifacts, resume, what was promised beside what is served, refusals."""

import json

import html_page
import pytest
import tiny
import tiny_summary
from fake_engines import answer, dies, serving, status
from tiny_errors import refused

from data_specs.evaluation import DRAFT, ROUNDS, write_rounds
from data_specs.manifest import write_json
from data_specs.results.summary import MARKDOWN, SUMMARY
from data_specs.served import ANSWERS, read_answers
from pipeline.config import ClientConfig, Config, ConfigError, EvaluateConfig, StageConfig, TrackingConfig
from pipeline.http_client import ServerError
from pipeline.prompts.chat import render_prompt
from pipeline.report import markdown
from pipeline.store.artifacts import Store
from stages.report.run import run_report
from stages.served.run import run_served

MATH = [f"How much is {i} and {i}?" for i in range(3)]
CHAT = [["Hello.", "More."]]
TURNS = 5


@pytest.fixture
def config(target_folder, tmp_path):
    files = {"gsm8k": tmp_path / "math.jsonl", "mt_bench": tmp_path / "chat.jsonl"}
    files["gsm8k"].write_text("".join(json.dumps({"prompt": q}) + "\n" for q in MATH))
    files["mt_bench"].write_text("".join(json.dumps({"turns": t}) + "\n" for t in CHAT))
    evaluate = EvaluateConfig(
        benchmarks=["gsm8k", "mt_bench"], files={k: str(v) for k, v in files.items()}, max_new_tokens=12, bootstrap=50,
        chunk_prompts=1,
    )  # fmt: skip
    return Config(
        stage=StageConfig("evaluate", ["evaluate"]), target=tiny.located(target_folder), evaluate=evaluate,
        tracking=TrackingConfig(mode="none"), artifacts=str(tmp_path / "artifacts"), engine="vllm",
        client=ClientConfig(backoff=0.001, retries=1, timeout=5.0),
    )  # fmt: skip


@pytest.fixture
def undrawn(monkeypatch):
    """Without the plots, which take most of the time."""
    monkeypatch.setattr(markdown, "png", lambda path, drawings: None)


@pytest.fixture
def store(config):
    return Store(config.artifacts)


def ask(config, store, *fakes, draft=None):
    config.engine, config.server = fakes[0].kind, fakes[0].url
    config.plain_server = fakes[1].url if len(fakes) > 1 else None
    return run_served(config, store, draft)


def promised(store, fakes_answers):
    """A draft, and an evaluation of it whose answers to ``gsm8k`` are given and whose benchmarks are more."""
    work = store.begin("draft", "tiny_dspark", 1, "d" * 64, {}, {})
    draft = store.commit(work, {})
    names = ["zeta", "gsm8k", "mt_bench"]
    made_with = {"evaluate": {"benchmarks": names}}
    work = store.begin("evaluation", "tiny_dspark", 1, "e" * 64, {"draft": "d" * 64}, made_with)
    told = tiny_summary.summary(levels={"zeta": 1.5, "gsm8k": 0.7, "mt_bench": 0.9})
    told["facts"] |= {"sampler": {"temperature": 0.0}, "max_new_tokens": 12}
    write_json(work.path / SUMMARY, told)
    (work.path / ROUNDS).mkdir()
    common = {
        "turn": 0, "mode": DRAFT, "context": 9, "drafted": 2, "proposed": 2, "draft_seconds": 0.1,
        "verify_seconds": 0.2, "confidences": None,
    }  # fmt: skip
    rows = []
    for benchmark, number, key, tokens in fakes_answers:
        for n, part in enumerate((tokens[:1], tokens[1:])):
            rows.append(common | {
                "benchmark": benchmark, "prompt": number, "key": key, "round": n, "tokens": part, "emitted": len(part),
                "accepted": max(0, len(part) - 1), "finish": "length" if n else None,
            })  # fmt: skip
    write_rounds(work.path / ROUNDS / "gsm8k-00000.parquet", rows)
    return draft, store.commit(work, {})


def test_a_server_without_anything_beside_it(config, store, target_folder, capsys):
    with serving("vllm") as fake:
        made = ask(config, store, fake)
    assert (made.manifest.kind, made.reference, made.manifest.parents) == ("evaluation", "tiny_vllm:v0", {})
    made.verify()
    units = [f"{ANSWERS}/gsm8k-0000{n}.parquet" for n in range(3)] + [f"{ANSWERS}/mt_bench-00000.parquet"]
    others = [SUMMARY, MARKDOWN, "report.html", "acceptance_by_position.png", "accepted_length.png"]
    assert set(made.manifest.files) == {*units, *others}
    rows = read_answers(made.path).to_pylist()
    assert [(r["benchmark"], r["prompt"], r["turn"]) for r in rows] == [
        ("gsm8k", 0, 0), ("gsm8k", 1, 0), ("gsm8k", 2, 0), ("mt_bench", 0, 0), ("mt_bench", 0, 1),
    ]  # fmt: skip
    counted = {"drafts": 6, "drafted": 18, "accepted": 6, "accepted_at": [4, 2, 0], "finish": "length"}
    assert all(counted.items() <= row.items() for row in rows)
    # The prompt is rendered here and sent as ids; the second turn follows the server's first answer.
    tokenizer = tiny.tokenizer()
    first = render_prompt(tokenizer, [{"role": "user", "content": MATH[0]}], None)
    assert fake.payloads[1]["prompt"] == first and rows[0]["context"] == len(first)
    said = tokenizer.decode(rows[3]["tokens"], skip_special_tokens=True)
    history = [("user", "Hello."), ("assistant", said), ("user", "More.")]
    asked = render_prompt(tokenizer, [{"role": role, "content": text} for role, text in history], None)
    assert fake.payloads[-1]["prompt"] == asked
    summary = json.loads((made.path / SUMMARY).read_text())
    found = summary["benchmarks"]["gsm8k"]
    # Eleven tokens after the first in six steps; a thirteenth token was cut.
    assert found["metrics"]["accepted_length"]["value"] == pytest.approx(11 / 6)
    assert found["metrics"]["acceptance_rate"]["value"] == pytest.approx(1 / 3)
    assert found["metrics"]["speedup"]["value"] is None
    assert (found["counts"]["answers"], found["counts"]["rounds"], found["finish"]) == (3, 18, {"length": 3})
    assert made.manifest.counts["accepted_length"] == pytest.approx(11 / 6) and summary["positions"] == 3
    shown = capsys.readouterr().out
    for text in ("1.83 [1.83, 1.83]", "33 %", ".67 .33 .00", "vllm 0.32.0", fake.url, "macro average"):
        assert text in shown, text
    text = (made.path / "report.html").read_text()
    page = html_page.Page(text)
    assert page.faults == [] and html_page.wrong_numbers(page, {"served": summary}) == []
    assert "plain_server=URL" in page.text and str(store.root) not in text
    again = run_report(Config(evaluations=["tiny_vllm"]), store)
    page = html_page.Page((again.path / "report.html").read_text())
    assert page.faults == [] and html_page.wrong_numbers(page, {"served": summary}) == []


@pytest.mark.usefixtures("undrawn")
def test_promised_and_served_stand_side_by_side(config, store, capsys):
    with serving("llama_cpp") as fake, serving("llama_cpp", draft=False) as plain:
        made = ask(config, store, fake, plain)
        same = [
            r for r in read_answers(made.path).to_pylist() if r["mode"] == DRAFT and r["benchmark"] == "gsm8k"
        ]
        answers = [("gsm8k", r["prompt"], r["key"], r["tokens"]) for r in same[:2]]
        answers.append(("gsm8k", 2, same[2]["key"], [9, 9]))
        draft, own = promised(store, answers)
        asked = len(fake.payloads)
        beside = ask(config, store, fake, plain, draft=draft)
    assert beside.manifest.parents == {"served_draft": "d" * 64, "promised": "e" * 64}
    assert (
        beside.reference == "tiny_dspark_llama_cpp:v0" and len(fake.payloads) > asked
    )  # a draft that is named is its own
    summary = json.loads((beside.path / SUMMARY).read_text())
    counts = summary["benchmarks"]["gsm8k"]["counts"]
    assert (counts["compared_with_promised"], counts["same_as_promised"]) == (3, 2)
    assert summary["benchmarks"]["gsm8k"]["metrics"]["same_answers"]["value"] == 1.0
    text = (beside.path / MARKDOWN).read_text()
    rows = [line for line in text.splitlines() if "promised |" in line or "served |" in line]
    assert [row.split(" | ")[:2] for row in rows[:6]] == [
        ["| gsm8k", "promised"], ["| gsm8k", "served"], ["| mt_bench", "promised"], ["| mt_bench", "served"],
        ["| macro average", "promised"], ["| macro average", "served"],
    ]  # fmt: skip
    assert (
        "| gsm8k | promised | 4 | 1.70 [1.60, 1.73] |" in text
        and "| gsm8k | served | 3 | 1.83 [1.83, 1.83] |" in text
    )
    shown = capsys.readouterr().out
    assert "answers equal to those of the promised evaluation: 66.7 % of 3" in shown
    assert "the plain server: 100.0 %" in shown
    page = html_page.Page((beside.path / "report.html").read_text())
    told = summary["served"]["promised"]["summary"]
    labels = {"promised": told, "served": summary}
    assert page.faults == [] and html_page.wrong_numbers(page, labels) == []
    assert {
        ("promised", "mt_bench/speedup"),
        ("served", "gsm8k/speedup"),
    } <= set(page.numbers)
    again = run_report(Config(evaluations=["tiny_dspark_llama_cpp"]), store)
    assert html_page.Page((again.path / "report.html").read_text()).numbers == page.numbers
    assert own.manifest.fingerprint in page.text or own.manifest.fingerprint[:16] in page.text


@pytest.mark.usefixtures("undrawn")
def test_steps_that_are_not_told(config, store, capsys):
    config.evaluate.benchmarks, config.evaluate.files = ["gsm8k"], {"gsm8k": config.evaluate.files["gsm8k"]}
    with serving("llama_cpp", metrics=False) as fake:
        made = ask(config, store, fake)
    summary = json.loads((made.path / SUMMARY).read_text())
    assert summary["positions"] == 0 and "acceptance_by_position.png" not in made.manifest.files
    assert "llama-server --metrics" in capsys.readouterr().out
    page = html_page.Page((made.path / "report.html").read_text())
    assert page.faults == [] and html_page.wrong_numbers(page, {"served": summary}) == []


@pytest.mark.usefixtures("undrawn")
def test_a_server_that_is_killed_is_gone_on_with(config, store):
    """The second answer after the warm-up is lost, and the retry too; what was done before is not asked again."""
    with serving("vllm") as fake:
        fake.script += [answer, answer, dies, status(503)]
        with refused(ServerError, fake.url, 2):
            ask(config, store, fake)
        assert store.list() == [] and len(fake.payloads) == 4
        made = ask(config, store, fake)
    # A warm-up, then the answers that were missing: two of gsm8k, two turns of mt_bench.
    assert len(fake.payloads) == 4 + 1 + 4
    assert read_answers(made.path).num_rows == TURNS


@pytest.mark.usefixtures("undrawn")
def test_what_is_there_is_not_measured_again(config, store, capsys):
    with serving("vllm") as fake:
        made = ask(config, store, fake)
        asked = len(fake.payloads)
        config.evaluate.bootstrap = 7
        assert ask(config, store, fake).path == made.path and len(fake.payloads) == asked
        assert "tiny_vllm:v0 (" in capsys.readouterr().out
        config.client.note = "three drafts"
        assert ask(config, store, fake).reference == "tiny_vllm:v1"
        promised(store, [("gsm8k", 0, "other", [1, 2])])
        assert "three drafts" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_answers_are_taken_over_for_a_promise_that_came_later(config, store, capsys):
    work = store.begin("draft", "tiny_dspark", 1, "d" * 64, {}, {})
    draft = store.commit(work, {})
    with serving("vllm") as fake:
        ask(config, store, fake, draft=draft)
        asked = len(fake.payloads)
        promised(store, [("gsm8k", 0, "other", [1, 2])])
        made = ask(config, store, fake, draft=draft)
    assert made.reference == "tiny_dspark_vllm:v1" and len(fake.payloads) == asked
    assert "answers of tiny_dspark_vllm:v0" in capsys.readouterr().out


def test_a_plan_asks_for_a_few_tokens_only(config, store, capsys):
    config.plan = True
    with serving("vllm") as fake:
        assert ask(config, store, fake) is None
    assert len(fake.payloads) == 1 and store.list() == []
    assert "Nothing was done" in capsys.readouterr().out


def test_llama_cpp_without_a_draft_is_named(config, store):
    with serving("llama_cpp", draft=False) as fake, refused(ServerError, f"server={fake.url}", "llama_cpp"):
        ask(config, store, fake)
    assert store.list() == []


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("engine", "drafted"), [("vllm", "target"), ("llama_cpp", "greedy")])
def test_how_the_server_drafts_is_recorded(config, store, engine, drafted):
    """llama.cpp has no other way; of vLLM the evaluation says what it was told."""
    config.evaluate.temperature = 0.7
    with serving(engine) as fake:
        made = ask(config, store, fake)
    assert made.manifest.config["sampler"]["draft_sampling"] == drafted
    assert json.loads((made.path / SUMMARY).read_text())["facts"]["sampler"]["draft_sampling"] == drafted


def test_a_model_of_another_size_is_named(config, store):
    with (
        serving("llama_cpp", hidden=64) as fake,
        refused(ServerError, fake.url, "tiny", 32, 64),
    ):
        ask(config, store, fake)


@pytest.mark.usefixtures("undrawn")
def test_no_key_is_kept(config, store, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-123")
    config.client.api_key_env = "MY_KEY"
    with serving("vllm") as fake:
        made = ask(config, store, fake)
    assert set(fake.authorizations) == {"Bearer secret-123"}
    assert made.manifest.config["client"]["api_key_env"] == "MY_KEY"
    assert not any(b"secret-123" in path.read_bytes() for path in store.root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "url,named", [("127.0.0.1:8000", "'127.0.0.1:8000'"), ("http://me:pw@host", "client.api_key_env")]
)
def test_a_url_that_cannot_be_asked_is_named(config, store, url, named):
    config.server = url
    with refused(ConfigError, "server", named):
        run_served(config, store, None)
