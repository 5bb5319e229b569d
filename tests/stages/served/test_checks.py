"""What an evaluation of a running server will need: the server itself."""

import json

import tiny
from fake_engines import serving

from pipeline.config import ClientConfig, Config, EvaluateConfig, StageConfig, TrackingConfig
from pipeline.preflight import Ahead
from stages.served.checks import checks


def test_a_server_that_answers_and_one_that_does_not(target_folder, tmp_path) -> None:
    (tmp_path / "math.jsonl").write_text(json.dumps({"prompt": "How much is 1 and 1?"}) + "\n")
    config = Config(
        stage=StageConfig("evaluate", ["evaluate"]), target=tiny.located(target_folder), engine="vllm",
        evaluate=EvaluateConfig(benchmarks=["gsm8k"], files={"gsm8k": str(tmp_path / "math.jsonl")}),
        tracking=TrackingConfig(mode="none"), artifacts=str(tmp_path / "artifacts"), draft="nowhere",
        client=ClientConfig(backoff=0.001, retries=0, timeout=5.0), server="http://127.0.0.1:9",
    )  # fmt: skip
    assert [check.state for check in checks(Ahead(config))] == ["problem", "problem", "ok"]
    with serving("vllm") as fake:
        config.server, config.draft = fake.url, None
        assert [check.state for check in checks(Ahead(config))] == ["ok", "ok"]
