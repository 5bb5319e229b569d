from pathlib import Path

from shell import LAUNCH, check_script, check_usage, fake, run

SCRIPT = LAUNCH / "serve_target.sh"


def test_the_script() -> None:
    check_script(SCRIPT)
    check_usage(SCRIPT)


def test_servers_listen_on_this_machine_only(tmp_path: Path) -> None:
    python = str(fake(tmp_path, "python"))
    vllm = run(SCRIPT, "-t", "2", "Qwen/Qwen3-4B", "--max-model-len", "4096", PYTHON=python)
    words = vllm.stdout.split()
    assert words[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-4B"]
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[-2:] == ["--max-model-len", "4096"]
    sglang = run(SCRIPT, "-e", "sglang", "-p", "9", "m", PYTHON=python).stdout.split()
    assert sglang == [
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        "9",
        "--tp",
        "1",
    ]
    wrong = run(SCRIPT, "-e", "tgi", "m", PYTHON=python)
    assert wrong.returncode == 2 and "-e tgi" in wrong.stderr
