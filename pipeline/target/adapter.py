"""A LoRA adapter merged into the weights of its base model, once: what is merged is the target from then on."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from data_specs.manifest import file_record, fingerprint
from pipeline.config import ConfigError, TargetConfig
from pipeline.target.architecture import auto_class, model_errors
from pipeline.target.conversion import made_once
from pipeline.target.files import TOKENIZER_FILES, dtype_of, identity, quiet_transformers, read_whole_config

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # as peft calls its files


def merged(cfg: TargetConfig, base: Path) -> Path:
    """The folder of ``base`` with ``target.adapter`` merged into it; made by one process, while others wait.

    Its name depends on what base and adapter hold. Tokenizer and chat template are the base's. Raises ``ConfigError``
    naming a file or package that is missing, or tensors of the adapter that the model has no place for.
    """
    adapter = Path(str(cfg.adapter)).expanduser()
    for name in (ADAPTER, ADAPTER_WEIGHTS):
        if not (adapter / name).is_file():
            raise ConfigError(f"target.adapter={cfg.adapter}: expected a folder with {name}, found none")
    held = {name: file_record(adapter / name).sha256 for name in (ADAPTER, ADAPTER_WEIGHTS)}
    origin = {"base": identity(base), "adapter": held, "dtype": cfg.dtype}
    return made_once(
        f"{cfg.name}-{fingerprint(origin)[:12]}",
        origin,
        f"merging the adapter {adapter} into {base}",
        lambda partial: _merge(cfg, base, adapter, partial),
    )


def _merge(cfg: TargetConfig, base: Path, adapter: Path, folder: Path) -> None:
    """Write the merged model into ``folder``."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError("target.adapter: the package peft is not installed (pip install peft)") from error
    config = read_whole_config(base, cfg)
    if hasattr(config, "quantization_config"):
        raise ConfigError(
            f"target.adapter={adapter}: {base} is quantised, and an adapter is merged into whole weights only: give "
            "the unquantised model as target.path"
        )
    options = {"dtype": dtype_of(cfg), "trust_remote_code": cfg.trust_remote_code}
    with TemporaryDirectory() as plain, quiet_transformers(), model_errors(base, cfg):
        for path in base.iterdir():  # transformers would load an adapter that lies beside its base
            if path.name not in (ADAPTER, ADAPTER_WEIGHTS):
                (Path(plain) / path.name).symlink_to(path.resolve())
        model = auto_class(config).from_pretrained(plain, **options)
        model = peft.get_peft_model(model, peft.PeftConfig.from_pretrained(str(adapter)))
        found = model.load_adapter(str(adapter), "default")
        _check_loaded(adapter, found)
        model.merge_and_unload().save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def _check_loaded(adapter: Path, found: Any) -> None:
    """An adapter of another model leaves the weights as they are, and peft only warns of it."""
    names = [*found.missing_keys, *found.unexpected_keys]
    if names:
        raise ConfigError(
            f"target.adapter={adapter}: {len(names)} of its tensors do not fit the model, the first is {names[0]}: is "
            "target.path its base model?"
        )
