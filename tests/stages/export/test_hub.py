import re

import huggingface_hub
import yaml
from tiny_export_store import FakeApi, calibrate, configured, evaluate, store_with_a_draft

from data_specs.manifest import read_json
from stages.export import lineage, run


def test_the_card_tells_what_was_measured_and_how_to_serve(tmp_path, target_folder, monkeypatch) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    calibrate(draft.path)
    evaluate(store)
    monkeypatch.chdir(tmp_path)  # what lies here must not change what the card says
    (tmp_path / "tiny-dspark").mkdir()
    (tmp_path / "tiny-dspark" / "draft.gguf").touch()
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    FakeApi.calls = []
    settings = {"target": "org/target", "repo": "me/tiny-dspark", "license": "mit"}
    artifact = run.run_export(configured(store, "hub", **settings), store, draft)[0]
    assert FakeApi.calls == [], "nothing leaves without push"
    card = (artifact.path / "README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\nbase_model: org/target\ntags:\n- speculative-decoding\n- draft-model\n- dspark\n"
    )
    for line in (
        "| target's identity | `1d1d1d1d1d1d1d1d` |",
        "| source | prompts.jsonl |",
        "| source | org/prompts at abc |",
        "| steps | 30 |",
        "| gsm8k | 5 | 2.50 [2.25, 2.75] | 31 % | 2.50 [2.25, 2.75] |",
        "| long | 0 | - | - | - |",
        "| trained on samples of at most | 512 tokens |",
        "draft of a block: 1.00, 0.50, 1.50, 1.00, 1.00, 1.00, 2.00. Fitted on 12 held-out prompts of quickstart;",
        "python convert_hf_to_gguf.py tiny-dspark --target-model-dir tiny --outfile tiny-dspark/draft.gguf",
        "python -m sglang.launch_server --model-path org/target --speculative-algorithm DSPARK "
        "--speculative-draft-model-path me/tiny-dspark --speculative-num-draft-tokens 8",
        "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/target --speculative-config "
        '\'{"method": "dspark", "model": "me/tiny-dspark", "num_speculative_tokens": 7, '
        '"draft_sample_method": "greedy"}\'',
        "mlx-dspark serve --mode dspark --model org/target --drafter me/tiny-dspark --drafter-bits 0",
        "hf download me/tiny-dspark --local-dir tiny-dspark",
        "- this draft: mit",
    ):
        assert line in card, line
    assert artifact.manifest.parents == {"draft": "draft-print", "evaluation": "eval-print"}
    run.run_export(configured(store, "hub", **settings, push=True, private=False), store, draft)
    files = [
        "README.md",
        "calibration.json",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "provenance.json",
    ]
    assert FakeApi.calls == [("create", "me/tiny-dspark", False), ("upload", "me/tiny-dspark", files)]


def test_the_card_names_the_revision_of_the_target(tmp_path) -> None:
    """The commit that was captured, where the target came from the Hub; nothing where it is another's."""
    store, draft = store_with_a_draft(tmp_path, "org/target", commit="c0" * 20)
    artifact = run.run_export(configured(store, "hub"), store, draft)[0]
    assert f"| target | org/target at revision {'c0' * 20} |" in (artifact.path / "README.md").read_text()
    assert read_json(artifact.path / "provenance.json")["target"]["revision"] == "c0" * 20
    manifests = lineage.ancestors(store, draft)
    assert lineage.known_target(manifests, {}, "other/target").revision is None


def test_a_card_says_what_no_engine_reads(tmp_path, target_folder, capsys) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder, "mtp")
    artifact = run.run_export(configured(store, "hub"), store, draft)[0]
    card = (artifact.path / "README.md").read_text()
    assert card.count("not with this draft. No engine reads") == 4
    assert "Not measured yet" in card and "no calibration.json" in card and "license: other" in card
    assert "No engine reads this draft yet" in capsys.readouterr().out


def test_names_in_a_card_are_text(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    hostile = {"license": "mit\ntags: [x]<img src=x>", "repo": "me/<script>1<b>"}
    card = (
        run.run_export(configured(store, "hub", **hostile), store, draft)[0].path / "README.md"
    ).read_text()
    front, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(front)["license"] == hostile["license"]
    assert yaml.safe_load(front)["tags"] == ["speculative-decoding", "draft-model", "dspark", "draftline"]
    text = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
    assert not re.search("<(img|script|b)", text) and "# &lt;script>1&lt;b>" in text
