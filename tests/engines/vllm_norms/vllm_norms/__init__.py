"""Corrects a norm of vLLM 0.32.0 on a CPU.

vLLM norms the context keys of a block drafter for all layers in one call of ``rms_norm`` with a two-dimensional weight.
On a CPU, that operator reads only the first row, so that every layer gets the norm of layer 0. Here each layer has its
own call, which computes what a GPU computes.
"""


def register():
    """vLLM calls this when it loads its plugins."""
    import torch
    from vllm import _custom_ops
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model
    from vllm.platforms import current_platform

    def normalize(self, keys):
        normed = torch.empty_like(keys)
        for layer, weight in enumerate(self._k_norm_weights):
            _custom_ops.rms_norm(
                normed[layer], keys[layer].contiguous(), weight.contiguous(), self._rms_norm_eps
            )
        return normed

    if current_platform.is_cpu():
        DFlashQwen3Model._normalize_context_k = normalize
