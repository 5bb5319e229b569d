"""Runs in speculators' environment: computes logits of a draft that the library reads, or makes and trains.

Standard input: {"folder", "target", "batch", "logits", "saved", "code", "make": null | {"kind", "steps", "config"}}.
The library writes what it read to ``saved``. ``code`` are the folders of draftline and of its imports. ``batch`` is a
safetensors file of input_ids [1, S], hidden [1, S, m*H], last_hidden [1, S, H], anchors bool [1, S], the target's
embedding and head, and the tables of a reduced vocabulary. Logits [A, slots, D] under teacher forcing are written to
the safetensors file ``logits``.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.losses import resolve_loss_config

VERIFIERS = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}


def read(folder, target):
    """The draft in ``folder``, loaded by the library with the verifier in ``target``.

    The file must have exactly the tensors that are not the verifier's, and the model must hold their values.
    """
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    verifier = config.speculators_config.verifier
    named, verifier.name_or_path = (
        verifier.name_or_path,
        target,
    )  # an export for a target with a Hub id names it
    model = SpeculatorModel.from_pretrained(folder, config=config)
    model.config.speculators_config.verifier.name_or_path = named
    written, held = load_file(f"{folder}/model.safetensors"), model.state_dict()
    absent = held.keys() - written.keys() - VERIFIERS
    assert not absent, f"the file lacks {sorted(absent)}"
    assert not written.keys() - held.keys(), f"the file has {sorted(written.keys() - held.keys())} besides"
    assert all(torch.equal(held[name], value) for name, value in written.items())
    return model


def through_library(folder, code):
    """config.json as draftline writes it if this library is installed; ``code`` are the folders of its imports."""
    sys.path += code
    from stages.export import speculators as exporter
    from stages.export.source import EngineLayout

    layout = EngineLayout(
        json.loads(Path(folder, "config.json").read_text()), load_file(f"{folder}/model.safetensors")
    )
    return exporter.through_library(layout).config


def make(asked):
    """A new draft, made of the library's own classes."""
    config = SpeculatorModelConfig.from_dict(asked["config"])
    config.transformer_layer_config._attn_implementation = "eager"
    torch.manual_seed(0)
    return SpeculatorModel.registered_model_class_from_config(config)(config)


def take_verifier(model, batch):
    """Give a new draft the verifier's embedding and head."""
    head = batch["head"] if model.t2d is None else batch["head"][model.t2d]
    with torch.no_grad():
        model.embed_tokens.weight.copy_(batch["embedding"])
        model.lm_head.weight.copy_(head)
        model.verifier_lm_head.weight.copy_(head)


def forward(model, batch, kind):
    """The library's training forward pass: a block at every anchor, or Eagle3's steps over its shifted sample."""
    loss = {"loss_config": resolve_loss_config("ce", "eager")}
    rows = {"document_ids": torch.zeros_like(batch["input_ids"])}
    if kind == "eagle3":
        return model(
            hidden_states=batch["hidden"][:, :-1],
            input_ids=batch["input_ids"][:, 1:],
            document_ids=rows["document_ids"][:, 1:],
            loss_mask=torch.ones_like(batch["input_ids"][:, 1:], dtype=torch.bool),
            verifier_last_hidden_states=batch["last_hidden"][:, 1:],
            ttt_steps=model.config.speculators_config.proposal_methods[0].speculative_tokens,
            **loss,
        )
    if kind == "dspark":
        loss["tv_loss_fn"] = resolve_loss_config("tv", "eager")["tv"][0]
    return model(
        hidden_states=batch["hidden"],
        input_ids=batch["input_ids"],
        loss_mask=batch["anchors"].long(),
        verifier_last_hidden_states=batch["last_hidden"],
        max_anchors=int(batch["anchors"].sum()),
        **rows,
        **loss,
    )


def observed_logits(model, batch, kind):
    """Logits [A, slots, D] of a forward pass, taken where its loss reads them."""
    module, seen = importlib.import_module(type(model).__module__), []
    measure = module.compute_metrics

    def compute_metrics(logits, *arguments, **options):
        seen.append(logits.detach())
        return measure(logits, *arguments, **options)

    module.compute_metrics = compute_metrics
    with torch.no_grad():
        forward(model.eval(), batch, kind)
    module.compute_metrics = measure
    if kind == "eagle3":  # one pass per step; a block begins with the state before its anchor
        places = batch["anchors"][0].nonzero()[:, 0] - 1
        return torch.stack([logits[0, places] for logits in seen], 1)
    return seen[0].view(int(batch["anchors"].sum()), model.block_size, -1)


def train(model, batch, kind, steps):
    """Train a few steps with the library's own loss."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(steps):
        forward(model.train(), batch, kind)[1].backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    asked = json.load(sys.stdin)
    batch, made = load_file(asked["batch"]), asked["make"]
    if made:
        model = make(made)
        if model.t2d is not None:
            model.load_vocab_mappings(batch["t2d"], batch["d2t"])
        take_verifier(model, batch)
        train(model, batch, made["kind"], made["steps"])
        model.save_pretrained(asked["folder"])
    else:
        model = read(asked["folder"], asked["target"])
        model.save_pretrained(asked["saved"])
        model.double()
        batch = {
            name: value.double() if value.is_floating_point() else value for name, value in batch.items()
        }
    kind = model.config.speculators_model_type
    save_file({"logits": observed_logits(model, batch, kind).contiguous()}, asked["logits"])
    written = None if made else through_library(asked["folder"], asked["code"])
    named = type(model.config).model_fields["architectures"].get_default(call_default_factory=True)
    print(json.dumps({"kind": kind, "through_library": written, "architectures": named}))


if __name__ == "__main__":
    main()
