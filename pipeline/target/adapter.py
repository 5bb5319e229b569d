"""Merges a LoRA adapter into the weights of its base model, once. The merged model is the target."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from data_specs.manifest import file_record, fingerprint
from pipeline.config import ConfigError, TargetConfig
from pipeline.target.architecture import auto_class, model_errors
from pipeline.target.conversion import made_once
from pipeline.target.files import TOKENIZER_FILES, dtype_of, identity, quiet_transformers, read_whole_config

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's names of its files


def merged(cfg: TargetConfig, base: Path) -> Path:
    """The folder of ``base`` with ``target.adapter`` merged into it. One process makes it while the others wait.

    Its name depends on the contents of base and adapter. The base provides tokenizer and chat template. Raises
    ``ConfigError`` naming a missing file or package, or tensors of the adapter that the model does not have.
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
            f"target.adapter={adapter}: {base} is quantised (quantization_config), but an adapter can only be merged "
            "into unquantised weights; set target.path to the unquantised model"
        )
    options = {"dtype": dtype_of(cfg), "trust_remote_code": cfg.trust_remote_code}
    with TemporaryDirectory() as plain, quiet_transformers(), model_errors(base, cfg):
        for path in base.iterdir():  # without an adapter there, which transformers would load
            if path.name not in (ADAPTER, ADAPTER_WEIGHTS):
                (Path(plain) / path.name).symlink_to(path.resolve())
        model = auto_class(config).from_pretrained(plain, **options)
        model = peft.get_peft_model(model, peft.PeftConfig.from_pretrained(str(adapter)))
        found = model.load_adapter(str(adapter), "default")
        # An adapter of another model leaves the weights unchanged, and peft only warns.
        if names := [*found.missing_keys, *found.unexpected_keys]:
            raise ConfigError(
                f"target.adapter={adapter}: {len(names)} of its tensors do not fit the model, the first is {names[0]}; "
                "set target.path to its base model"
            )
        model.merge_and_unload().save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)
