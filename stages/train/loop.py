"""Stage train: target cache -> draft.

A run has one work folder, which the fingerprint of its inputs determines (pitfall 36):

    metrics.jsonl          the record (record.py), which becomes part of the artifact
    run/checkpoints/       see checkpoints.py
    run/best/step-N/       drafts that had the best held-out accepted length when they were saved

At the end, ``config.json``, ``model.safetensors`` (the best draft), ``last/`` and ``training.png`` are added. Then
``summary.json`` is written, after which only the removal of ``run/`` and the commit remain.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from data_specs.draft import LAST, METRICS
from data_specs.errors import UserError
from data_specs.manifest import fingerprint, read_json, write_json
from pipeline import console, ranks
from pipeline.config import Config, section
from pipeline.drafts.base import LossWeights
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lease import Lease
from pipeline.store.tracking import Tracker
from pipeline.store.work import commit_once
from pipeline.target.tensors import load_tensors
from stages.train import batches, checkpoints, record, trainer
from stages.train.claim import sole_run
from stages.train.output import check_frozen, save_draft
from stages.train.plan import Setup, prepare, show_plan, show_size, with_start
from stages.train.schedule import final_weights, learning_rate, loss_weights
from stages.train.step_sums import SCORE, Sums, Timed

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
PLOT, RUN = "training.png", "run"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class NonFiniteError(UserError):
    """A loss or a gradient is NaN or infinite. The draft was not updated with it."""


def run_train(config: Config, store: Store, cache: Artifact) -> Artifact | None:
    """Train the draft that ``config`` describes on ``cache`` and commit it. Returns None with ``plan=true``.

    An interrupted run with the same inputs is continued from its newest complete checkpoint. Raises ``UserError`` if
    the cache is damaged or does not fit, ``BusyError`` if another process runs the same training, ``ClaimLostError``
    if another process took over because this one stood still, ``NonFiniteError`` if a loss or gradient is not finite,
    and, if signal n stops the run, ``SystemExit`` (128 + n) after a checkpoint.
    """
    setup = prepare(with_start(config, store), cache)
    inputs = fingerprint(SCHEMA_VERSION, setup.inputs)
    found = store.find("draft", inputs)
    if found is None and config.plan:
        show_plan(setup)
        return None
    if found is None:
        name = f"{config.target.name}_{config.drafter.name}"
        with trainer.process_group(), sole_run(store.work_folder("draft", name, inputs)) as claim:
            found = trainer.from_main(store.find("draft", inputs))  # another run may just have ended
            if found is None:
                return _train(setup, store, name, inputs, claim)
    if ranks.is_main():
        console.say(f"Reusing the draft {found.reference} ({found.path})")
    return found


def _train(setup: Setup, store: Store, name: str, inputs: str, claim: Lease) -> Artifact:
    """Train and commit the draft ``name`` with the fingerprint ``inputs``. All ranks call it together."""
    config, parents = setup.config, {"cache": setup.cache.manifest.fingerprint}
    settings, made = section(config), setup.cache.manifest.config["target"]
    if "chat_template" in made:  # the text of the template, which the config lacks
        settings["target"]["chat_template"] = made["chat_template"]
    work = store.begin("draft", name, SCHEMA_VERSION, inputs, parents, settings)
    run = (store.root, work.path / RUN, inputs[:16], name)
    tracker = Tracker(config.tracking, *run, settings, ranks.is_main())
    code = 1
    try:
        if not trainer.from_main((work.path / SUMMARY).is_file()):
            Run(setup, work, tracker, claim).train()
        artifact = _commit(store, work, claim)
        tracker.artifact(artifact, {"cache": setup.cache})
        code = 0
    finally:
        tracker.finish(code)
    if ranks.is_main():
        console.say(f"Draft {artifact.reference}: {_outcome(artifact.manifest.counts)} ({artifact.path})")
    return artifact


def _outcome(counts: Mapping[str, Any]) -> str:
    """A short summary of the run."""
    kept = "no held-out samples"
    if length := counts["best_accepted_length"]:
        kept = f"held-out accepted length {length:.2f} at step {counts['best_step']}"
    seen = f"{counts['passes']:.3g} passes over {counts['samples']:,} samples"
    batch = round(counts["passes"] * counts["samples"] / counts["steps"])
    return f"{counts['steps']} steps of {batch} sequences ({seen}), {counts['trainable']:,} trained parameters, {kept}"


def _commit(store: Store, work: Work, claim: Lease) -> Artifact:
    """Remove the files that are not part of the artifact, and commit the artifact."""
    if ranks.is_main():
        claim.check()
        shutil.rmtree(work.path / RUN, ignore_errors=True)
    summary = trainer.from_main(read_json(work.path / SUMMARY) if ranks.is_main() else None)
    return commit_once(store, work, lambda: summary)


class Run:
    """One training run in its work folder."""

    def __init__(self, setup: Setup, work: Work, tracker: Tracker, claim: Lease) -> None:
        self.setup, self.config, self.folder, self.tracker = setup, setup.config, work.path, tracker
        self.claim = claim  # rank 0 checks it before it writes anything
        self.checkpoints = work.path / RUN / "checkpoints"
        self.record = record.Record(work.path / METRICS, ranks.is_main(), claim.check)
        self.decided = 0  # the signal that asked this rank to end

    def train(self) -> None:
        """Train from the last checkpoint, or from the start, to the end, and write the artifact's files."""
        train, deepspeed = self.config.train, self.config.deepspeed
        trainer.on_main(lambda: self.setup.samples.reader.verify(full=train.verify == "full"))
        names = sorted(name for name, p in self.setup.draft.named_parameters() if p.requires_grad)
        self.layout = checkpoints.CheckpointLayout(ranks.world_size(), deepspeed.stage, names)
        start = trainer.from_main(checkpoints.newest(self.checkpoints) if ranks.is_main() else None)
        if start is not None:
            checkpoints.check_layout(start, self.layout)
            checkpoints.check_trust(start)
        show_size(self.setup)
        with ExitStack() as stack:
            micro_steps = self.setup.sharing.micro_steps
            self.engine = trainer.Trainer(self.setup.draft, train, deepspeed, micro_steps)
            stack.callback(self.engine.close)
            first = self._resume(start)
            stack.enter_context(_signals(self._on_signal))
            self._steps(first)
            self._finish()

    def _resume(self, start: checkpoints.Checkpoint | None) -> int:
        """Restore ``start`` and return the first step that remains."""
        step = 0 if start is None else start.step
        if start is not None:
            self.engine.load(start.path)
            if ranks.is_main():
                console.say(f"continuing from the checkpoint after step {step} of {self.setup.steps}")
        self.record.rewind(step)
        return step

    # --- the steps ---

    def _steps(self, first: int) -> None:
        total, every = self.setup.steps, self.config.train
        assert every.evaluate_every is not None, "chosen"
        pin = self.engine.device.type == "cuda"
        title = f"training from step {first}" if first else "training"
        with (
            batches.read_ahead(self.setup.shares, first, total, every.workers, pin) as stream,
            console.progress(title, total - first, enabled=ranks.is_main()) as bar,
        ):
            for step in range(first, total):
                if stop := self._step(step, stream):
                    self._save(step)
                    if ranks.is_main():
                        name = signal.Signals(stop).name
                        console.say(
                            f"stopped by {name} after step {step} of {total}; run it again to continue"
                        )
                    raise SystemExit(128 + stop)
                done = step + 1
                if done % every.evaluate_every == 0 or done == total:
                    self._evaluate(done)
                self._track(done)
                if done % every.checkpoint_every == 0 or done == total:
                    self._save(done)
                bar.advance(1, self._note())

    def _step(self, step: int, stream: Iterator[batches.Micro]) -> int:
        """Do one optimizer step and return 0, or do nothing and return the signal that asked a rank to end."""
        began = time.monotonic()
        micros = Timed(stream)
        first = next(micros)
        global_weight, stop = trainer.sum_over_ranks([first.step_weight, float(self.decided)])
        if stop:
            return max(trainer.gather(self.decided))
        rest = itertools.islice(micros, self.setup.sharing.micro_steps - 1)
        weights = loss_weights(step, self.setup.steps, self.config.drafter.loss)
        figures = self._gradient(step, itertools.chain([first], rest), weights, global_weight or 1.0)
        lr = learning_rate(step, self.setup.steps, self.config.train)
        norm = self.engine.step(lr)
        seconds = time.monotonic() - began
        self._log(
            "train", step + 1, **figures, lr=lr, grad_norm=norm, ce_weight=weights.ce, l1_weight=weights.l1,
            seconds=seconds, waiting=micros.waited / seconds,
            samples=self.setup.shares.step_numbers(step).tolist(),
        )  # fmt: skip
        return 0

    def _gradient(
        self, step: int, micros: Iterable[batches.Micro], weights: LossWeights, global_weight: float
    ) -> dict[str, float]:
        """Compute the step's gradient and return its figures. ``NonFiniteError`` is raised before an update."""
        sums = Sums()
        for micro in micros:
            on_device = micro.to(self.engine.device)
            terms = self.engine.loss(on_device, weights, self.config.drafter.loss.chunk_slots)
            self.engine.backward(terms.total, global_weight)
            sums.add(on_device, terms, self.engine.take_square())
        figures, finite = sums.over_ranks()
        if not finite:
            raise NonFiniteError(self._culprits(step, sums))
        return figures

    def _culprits(self, step: int, sums: Sums) -> str:
        """The error message for a step whose loss or gradient is not finite. It is the same on all ranks."""
        keys = self.setup.samples.reader.keys
        bad = [
            f"samples {', '.join(f'{n} ({keys[n][:12]})' for n in numbers if n >= 0) or 'none'}: "
            f"loss sum {total:.4g}, gradient norm {norm:.4g}"
            for part in trainer.gather(sums.not_finite())
            for numbers, total, norm in part
        ]
        which = "; ".join(bad or ["only the sum over ranks"])
        return f"step {step + 1}: not finite, nothing was updated: {which}"

    # --- held-out samples ---

    def _evaluate(self, done: int) -> None:
        """Log held-out loss and accepted length after ``done`` steps, and save the draft if it is the best so far."""
        setup, loss = self.setup, self.config.drafter.loss
        if not setup.heldout:
            return
        began = time.monotonic()
        sums, weights = Sums(), final_weights(loss)
        for micro in batches.heldout_micros(
            setup.heldout_samples, setup.heldout, setup.sharing, ranks.rank()
        ):
            on_device = micro.to(self.engine.device)
            sums.add(on_device, self.engine.evaluate(on_device, weights, loss.chunk_slots))
        figures, finite = sums.over_ranks()
        if not finite:
            raise NonFiniteError(f"step {done}: the held-out loss is not finite")
        best = self.record.best()
        if best is None or figures[SCORE] > best[SCORE]:
            self._save_draft(self._best_folder(done))
        self._log("heldout", done, **figures, seconds=time.monotonic() - began)

    def _best_folder(self, step: int) -> Path:
        return self.folder / RUN / "best" / f"step-{step:08d}"

    def _save_draft(self, folder: Path) -> None:
        """Write the current draft. All ranks call it together."""
        with self.engine.gathered() as draft:
            if ranks.is_main():
                self.claim.check()
                save_draft(draft, folder, self.setup.save_dtype)
        trainer.barrier()

    # --- checkpoints ---

    def _save(self, step: int) -> None:
        """Write the checkpoint after ``step`` steps unless it exists, and remove files that no resume can need."""
        if trainer.from_main(any(c.step == step for c in checkpoints.complete_ones(self.checkpoints))):
            return
        if ranks.is_main():
            self.claim.check()
            checkpoints.begin(self.checkpoints, step)
        trainer.barrier()
        self.engine.save(checkpoints.partial_folder(self.checkpoints, step))
        trainer.barrier()
        if ranks.is_main():
            self.claim.check()
            checkpoints.complete(self.checkpoints, step, self.layout)
            self._tidy(checkpoints.tidy(self.checkpoints, self.config.train.keep_checkpoints))
        trainer.barrier()

    def _tidy(self, kept: list[checkpoints.Checkpoint]) -> None:
        """Remove all drafts except those that were the best at one of the kept checkpoints."""
        best = [self.record.best(until=checkpoint.step) for checkpoint in kept]
        needed = {self._best_folder(line["step"]) for line in best if line is not None}
        for folder in (self.folder / RUN / "best").glob("*"):
            if folder not in needed:
                shutil.rmtree(folder, ignore_errors=True)

    # --- the end ---

    def _on_signal(self, number: int) -> None:
        self.decided = number

    def _finish(self) -> None:
        """Write the artifact's files: the last draft, the best draft, the plot, and finally the summary."""
        last = self.folder / LAST
        self._save_draft(last)
        if ranks.is_main():
            best = self.record.best()
            source = last if best is None else self._best_folder(best["step"])
            for path in source.iterdir():
                shutil.copyfile(path, self.folder / path.name)
            target = load_tensors(self.config.target)  # unlike the draft's tensors, never in training
            for folder in (self.folder, last):
                check_frozen(folder, target)
            record.plot(self.record.lines, self.folder / PLOT)
            self.claim.check()
            write_json(self.folder / SUMMARY, self._summary(best))
        trainer.barrier()

    def _summary(self, best: dict[str, Any] | None) -> dict[str, Any]:
        """The counts of the manifest."""
        heldout, trained = self.record.last("heldout"), self.record.last("train")
        return {
            "steps": self.setup.steps,
            "samples": len(self.setup.samples.numbers),
            "passes": self.setup.passes,
            "parameters": self.setup.parameters,
            "trainable": self.setup.trainable,
            "loss": trained["loss"] if trained else None,
            "best_step": best["step"] if best else self.setup.steps,
            "heldout_samples": len(self.setup.heldout),
            "best_accepted_length": best[SCORE] if best else None,
            "last_accepted_length": heldout[SCORE] if heldout else None,
        }

    def _log(self, kind: str, step: int, **values: Any) -> None:
        self.record.append({"kind": kind, "step": step, **values})

    def _track(self, step: int) -> None:
        """Send the lines of ``step`` to the tracker."""
        lines = [line for line in self.record.lines[-2:] if line["step"] == step]
        values = {f"{line['kind']}/{key}": value for line in lines for key, value in line.items()}
        self.tracker.log(step, {k: v for k, v in values.items() if isinstance(v, int | float)})

    def _note(self) -> str:
        train, heldout = self.record.last("train"), self.record.last("heldout")
        assert train is not None
        length = f"held-out length {heldout[SCORE]:.2f}  " if heldout else ""
        return (
            f"loss {train['loss']:.3f}  {length}lr {train['lr']:.1e}  {train['seconds']:.2f} s/step  "
            f"data {train['waiting']:.0%}"
        )


@contextmanager
def _signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call ``handle`` at the first of each of ``SIGNALS``; the same signal a second time ends the process as usual."""
    before: dict[int, Any] = {int(number): signal.getsignal(number) for number in SIGNALS}

    def on_signal(number: int, _: Any) -> None:
        signal.signal(number, before[number])
        handle(number)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
