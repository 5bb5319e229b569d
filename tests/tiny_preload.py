"""Imports what a run imports, once in the fork server of tiny_cache.py; in each process it would take seconds."""

import deepspeed
import deepspeed.ops.op_builder
import deepspeed.runtime.zero.muon.original_muon  # brings torch's compiler; ZeRO imports it
import deepspeed.runtime.zero.stage3
import deepspeed.runtime.zero.stage_1_and_2
import matplotlib.backends.backend_agg
import matplotlib.pyplot
import PIL.PngImagePlugin
import pyarrow.dataset  # brings pandas
import zarr

import stages.train.loop

deepspeed.ops.__compatible_ops__  # noqa: B018  tries a compiler out

__all__ = ["PIL", "matplotlib", "pyarrow", "stages", "zarr"]
