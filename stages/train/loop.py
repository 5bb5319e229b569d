"""Stage train: target cache -> draft.

The work folder of a run (pitfall 36: one, found by the fingerprint of its inputs):

    metrics.jsonl          the record, see record.py; goes into the artifact
    run/checkpoints/       see checkpoints.py
    run/best/step-N/       drafts that were the best by held-out accepted length when they were saved

At the end ``config.json``, ``model.safetensors`` (the best draft), ``last/`` and ``training.png`` are written
beside them, then ``summary.json``, which says that only the removal of ``run/`` and the commit are left.
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
    """A loss or a gradient that is NaN or infinite; nothing was updated with it."""


def run_train(config: Config, store: Store, cache: Artifact) -> Artifact | None:
    """Train the draft that ``config`` describes on ``cache`` and commit it; None with ``plan=true``.

    Goes on from the newest complete checkpoint of an interrupted run with the same inputs. Raises
    ``UserError`` for a cache that is damaged or does not fit, ``BusyError`` when another process runs the
    same training, ``ClaimLostError`` when another one took over because this one stood still,
    ``NonFiniteError`` for a run that broke, and ``SystemExit`` (128 + n) after a checkpoint when signal n
    asked it to end.
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
        console.say(f"The draft is already there: {found.reference} ({found.path})")
    return found


def _train(setup: Setup, store: Store, name: str, inputs: str, claim: Lease) -> Artifact:
    """Train and commit the draft ``name`` of the fingerprint ``inputs``, in the group of all ranks."""
    settings, parents = section(setup.config), {"cache": setup.cache.manifest.fingerprint}
    made = setup.cache.manifest.config[
        "target"
    ]  # The text of the template is in it; the config has the rest.
    settings["target"] |= {key: made[key] for key in ("chat_template",) if key in made}
    work = store.begin("draft", name, SCHEMA_VERSION, inputs, parents, settings)
    tracker = Tracker(
        setup.config.tracking, store.root, work.path / RUN, inputs[:16], name, settings, ranks.is_main()
    )
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
    """The summary in a few words."""
    length = counts["best_accepted_length"]
    kept = (
        f"held-out accepted length {length:.2f} at step {counts['best_step']}"
        if length
        else "no held-out samples"
    )
    seen = f"{counts['passes']:.3g} passes over {counts['samples']:,} samples"
    batch = round(counts["passes"] * counts["samples"] / counts["steps"])
    return f"{counts['steps']} steps of {batch} sequences ({seen}), {counts['trainable']:,} trained parameters, {kept}"


def _commit(store: Store, work: Work, claim: Lease) -> Artifact:
    """Remove what was only for the work, and commit what is for others."""
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
        """Train from where an interrupted run left off to the end, and write the artifact's files."""
        train = self.config.train
        trainer.on_main(lambda: self.setup.samples.reader.verify(full=train.verify == "full"))
        layout = self._layout()
        start = trainer.from_main(checkpoints.newest(self.checkpoints) if ranks.is_main() else None)
        if start is not None:
            checkpoints.check_layout(start, layout)
        show_size(self.setup)
        with ExitStack() as stack:
            self.engine = trainer.Trainer(
                self.setup.draft, train, self.config.deepspeed, self.setup.sharing.micro_steps
            )
            stack.callback(self.engine.close)
            first = self._resume(start)
            stack.enter_context(_signals(self._on_signal))
            self._steps(first, layout)
            self._finish()

    def _layout(self) -> checkpoints.CheckpointLayout:
        names = [name for name, p in self.setup.draft.named_parameters() if p.requires_grad]
        return checkpoints.CheckpointLayout(ranks.world_size(), self.config.deepspeed.stage, sorted(names))

    def _resume(self, start: checkpoints.Checkpoint | None) -> int:
        """Restore ``start``; returns the first step that is left to do."""
        step = 0 if start is None else start.step
        if start is not None:
            self.engine.load(start.path)
            if ranks.is_main():
                console.say(f"going on from the checkpoint after step {step} of {self.setup.steps}")
        self.record.rewind(step)
        return step

    # --- the steps ---

    def _steps(self, first: int, layout: checkpoints.CheckpointLayout) -> None:
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
                    self._save(step, layout)
                    raise SystemExit(self._stopped(stop, step))
                done = step + 1
                if done % every.evaluate_every == 0 or done == total:
                    self._evaluate(done)
                self._track(done)
                if done % every.checkpoint_every == 0 or done == total:
                    self._save(done, layout)
                bar.advance(1, self._note())

    def _step(self, step: int, stream: Iterator[batches.Micro]) -> int:
        """One optimizer step; or returns the signal that asked some rank to end, nothing being done."""
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
        """Form the step's gradient, and return its figures; ``NonFiniteError`` before anything is updated."""
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
        """The message about a step whose loss or gradient is not finite; the same on all ranks."""
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
        """Held-out loss and accepted length after ``done`` steps; the best draft so far is kept."""
        if not self.setup.heldout:
            return
        began = time.monotonic()
        sums = Sums()
        weights = final_weights(self.config.drafter.loss)
        micros = batches.heldout_micros(
            self.setup.heldout_samples, self.setup.heldout, self.setup.sharing, ranks.rank()
        )
        for micro in micros:
            on_device = micro.to(self.engine.device)
            sums.add(
                on_device, self.engine.evaluate(on_device, weights, self.config.drafter.loss.chunk_slots)
            )
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
        """Write the draft as it is now; on all ranks together."""
        with self.engine.gathered() as draft:
            if ranks.is_main():
                self.claim.check()
                save_draft(draft, folder, self.setup.save_dtype)
        trainer.barrier()

    # --- checkpoints ---

    def _save(self, step: int, layout: checkpoints.CheckpointLayout) -> None:
        """Write the checkpoint after ``step`` steps unless it is there; remove what no resume can need."""
        there = trainer.from_main(any(c.step == step for c in checkpoints.complete_ones(self.checkpoints)))
        if there:
            return
        if ranks.is_main():
            self.claim.check()
            checkpoints.begin(self.checkpoints, step)
        trainer.barrier()
        self.engine.save(checkpoints.partial_folder(self.checkpoints, step))
        trainer.barrier()
        if ranks.is_main():
            self.claim.check()
            checkpoints.complete(self.checkpoints, step, layout)
            self._tidy(checkpoints.tidy(self.checkpoints, self.config.train.keep_checkpoints))
        trainer.barrier()

    def _tidy(self, kept: list[checkpoints.Checkpoint]) -> None:
        """Keep those drafts only that are the best so far at one of the kept checkpoints."""
        best = [self.record.best(until=checkpoint.step) for checkpoint in kept]
        needed = {self._best_folder(line["step"]) for line in best if line is not None}
        for folder in (self.folder / RUN / "best").glob("*"):
            if folder not in needed:
                shutil.rmtree(folder, ignore_errors=True)

    # --- the end ---

    def _on_signal(self, number: int) -> None:
        self.decided = number

    def _stopped(self, number: int, step: int) -> int:
        """Say that the run stopped; returns its exit code."""
        if ranks.is_main():
            name = signal.Signals(number).name
            console.say(
                f"stopped by {name} after step {step} of {self.setup.steps}; the same command goes on"
            )
        return 128 + number

    def _finish(self) -> None:
        """Write the artifact's files: the last draft, the best, the plot, and at the very end the summary."""
        last = self.folder / LAST
        self._save_draft(last)
        if ranks.is_main():
            best = self.record.best()
            source = last if best is None else self._best_folder(best["step"])
            for path in source.iterdir():
                shutil.copyfile(path, self.folder / path.name)
            target = load_tensors(self.config.target)  # read anew: the draft held the other ones
            for folder in (self.folder, last):
                check_frozen(folder, target)
            record.plot(self.record.lines, self.folder / PLOT)
            self.claim.check()
            write_json(self.folder / SUMMARY, self._summary(best))
        trainer.barrier()

    def _summary(self, best: dict[str, Any] | None) -> dict[str, Any]:
        """What the manifest counts."""
        heldout = self.record.last("heldout")
        trained = self.record.last("train")
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
        numbers = {
            f"{x['kind']}/{key}": v for x in lines for key, v in x.items() if isinstance(v, int | float)
        }
        self.tracker.log(step, numbers)

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
    """The first of ``SIGNALS`` calls ``handle``; a second one of the same ends the process as usual."""
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
