"""Prints the shell command that serves a target with an exported draft; ``launch/serve_draft.sh`` runs what it prints.

It runs in the engine's environment, which may lack draftline's dependencies, so it uses the standard library only.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from data_specs.errors import UserError
from data_specs.export import SPS, STS

ENGINES = ("vllm", "sglang", "llama_cpp", "mlx")
# Part of the architecture's name -> the engines' name of the drafter.
KINDS = {"Eagle3": "eagle3", "DFlashDraftModel": "dflash", "DSpark": "dspark"}
# Files that SGLang reads in addition to the draft.
SCHEDULE = {STS: "--speculative-dspark-confidence-sts-path", SPS: "--speculative-dspark-sps-table-path"}
SAMPLE_METHODS = {"target": "probabilistic", "greedy": "greedy"}  # evaluate.draft_sampling -> vLLM's name
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


class ServeError(UserError):
    """The export cannot be served by this engine, or the target is unknown."""


class Served:
    """An export in ``folder`` and the engine that serves it.

    Raises ``ServeError`` when the engine is unknown or the folder holds no export.
    """

    def __init__(self, engine: str, folder: str) -> None:
        if engine not in ENGINES:
            raise ServeError(f"{engine}: expected vllm, sglang, llama_cpp or mlx")
        self.engine, self.folder = engine, folder
        names = ("config.json", "manifest.json", "provenance.json")
        self.config, self.manifest, self.origin = (self._read(name) for name in names)
        self.draft: str = ((self.origin or {}).get("draft") or {}).get("reference") or ""
        if self.config is None:
            raise ServeError(f"{folder}: expected the folder of an export, but it holds no config.json")

    def _read(self, name: str) -> Any:
        path = Path(self.folder, name)
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ServeError(f"{path}: expected JSON, got: {error}") from None

    def remedy(self, draft: str) -> str:
        """The command that exports ``draft`` for this engine, with DRAFT in place of a draft without a reference."""
        converter = " export.converter=convert_hf_to_gguf.py" if self.engine == "llama_cpp" else ""
        name = draft if ":" in draft else "DRAFT"
        return f"python -m pipeline stage=export export={self.engine} draft={name}{converter}"

    def check_format(self) -> None:
        """Raise ``ServeError`` if, according to the manifest, this is no export or an export for another engine.

        A folder without a manifest, such as a downloaded one, is accepted.
        """
        manifest = self.manifest
        if manifest is None:
            return
        if manifest["kind"] != "export":
            draft = f"{manifest['name']}:{manifest['version']}" if manifest["kind"] == "draft" else self.draft
            raise ServeError(
                f"{self.folder}: expected an export, but it is an artifact of kind {manifest['kind']}. "
                f"To export it: {self.remedy(draft)}"
            )
        form = manifest["config"]["format"]
        if form not in (self.engine, "hub") and (self.engine, form) != ("vllm", "speculators"):
            raise ServeError(
                f"{self.folder}: expected an export for {self.engine}, but it is one for {form}. "
                f"To make it: {self.remedy(self.draft)}"
            )

    def algorithm(self) -> tuple[str, int]:
        """The engine's name of the drafter and the drafts per round, from the fields that layouts.py writes."""
        config = self.config
        kind = config.get("speculators_model_type")
        if kind is None:
            name = (config.get("architectures") or ["nothing"])[0]
            kind = next((kind for part, kind in KINDS.items() if part in name), None)
            if kind is None:
                raise ServeError(
                    f"{self.folder}/config.json: field architectures: expected DSpark, DFlash or Eagle3, got {name}; "
                    "no engine serves such a draft"
                )
        methods = config.get("speculators_config", {}).get("proposal_methods")
        if methods:
            return kind, methods[0]["speculative_tokens"]
        first = kind == "eagle3" or config.get("sample_from_anchor", kind == "dspark")
        return kind, config["block_size"] - (0 if first else 1)

    def target(self, given: str) -> tuple[str, str | None]:
        """The target and its revision: ``given`` by the user, or else from the export."""
        if self.engine == "llama_cpp":
            target = given or f"{self.folder}/target.gguf"
            for path in (f"{self.folder}/draft.gguf", target):
                if not os.path.isfile(path):
                    raise ServeError(f"{path}: no such file. To make it: {self.remedy(self.draft)}")
            return target, None
        said = (self.origin or {}).get("target") or {}
        if given or said.get("hub_id"):
            return (given, None) if given else (said["hub_id"], said.get("revision"))
        missing = "no such file" if self.origin is None else "field target.hub_id: expected a Hub id"
        raise ServeError(
            f"{self.folder}/provenance.json: {missing}. Name the target (a folder or a Hub id): "
            f"launch/serve_draft.sh {self.engine} {self.folder} TARGET"
        )


def speculative_config(kind: str, folder: str, drafts: int, draft_sampling: str | None) -> str:
    """vLLM's ``--speculative-config``. By default, vLLM drafts greedily and verifies all drafts."""
    options: dict[str, Any] = {"method": kind, "model": folder, "num_speculative_tokens": drafts}
    method = SAMPLE_METHODS.get(str(draft_sampling))
    return json.dumps(options | ({"draft_sample_method": method} if method else {}))


def command(served: Served, given: str, options: list[str]) -> list[str]:
    """The words of the command that serves the target ``given``, or the export's own target, with the draft.

    ``options`` come last, so that they override the other options. Raises ``ServeError``.
    """
    served.check_format()
    kind, drafts = served.algorithm()
    target, revision = served.target(given)
    folder, python = served.folder, os.environ.get("PYTHON") or "python"
    place = [*(["--revision", revision] if revision else []), "--host", "127.0.0.1"]
    if served.engine == "vllm":
        # DSpark needs vLLM's second model runner.
        runner = ["env", f"{RUNNER}=1"] if kind == "dspark" and not os.environ.get(RUNNER) else []
        draft = speculative_config(kind, folder, drafts, (served.origin or {}).get("draft_sampling"))
        start = [*runner, python, "-m", "vllm.entrypoints.openai.api_server", "--model", target, *place]
        return [*start, "--speculative-config", draft, *options]
    if served.engine == "sglang":
        chain = ["--speculative-num-steps", str(drafts), "--speculative-eagle-topk", "1"] * (kind == "eagle3")
        start = [python, "-m", "sglang.launch_server", "--model-path", target, *place]
        draft_model = ["--speculative-algorithm", kind.upper(), "--speculative-draft-model-path", folder]
        files = [(option, f"{folder}/{name}") for name, option in SCHEDULE.items()]
        schedule = [word for pair in files if os.path.isfile(pair[1]) for word in pair]
        count = ["--speculative-num-draft-tokens", str(drafts + 1)]
        return [*start, *draft_model, *chain, *count, *schedule, *options]
    if served.engine == "llama_cpp":
        start = [
            os.environ.get("LLAMA_SERVER") or "llama-server",
            "-m",
            target,
            "-md",
            f"{folder}/draft.gguf",
        ]
        spec = ["--metrics", "--spec-type", f"draft-{kind}", "--spec-draft-n-max", str(drafts)]
        return [*start, *place, *spec, *options]
    start = [os.environ.get("MLX_DSPARK") or "mlx-dspark", "serve", "--mode", kind, "--model", target]
    # Without --drafter-bits 0, the server would quantise the draft to 4 bits. It has no option for a revision.
    return [*start, "--drafter", folder, "--drafter-bits", "0", "--host", "127.0.0.1", *options]


def main(engine: str, folder: str, *rest: str) -> None:
    """Print the command for ``ENGINE EXPORT [TARGET] [OPTION ...]``. A dash means the export's own target."""
    named = bool(rest) and (rest[0] == "-" or not rest[0].startswith("-"))
    given, options = (rest[0].removeprefix("-"), rest[1:]) if named else ("", rest)
    try:
        print(shlex.join(command(Served(engine, folder.removesuffix("/")), given, list(options))))
    except ServeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
