"""vLLM 0.32.0 norms the keys of a block drafter's context for all layers in one call of ``rms_norm`` with a weight of
two axes. On a CPU that operator reads the first row only, so that every layer gets the norm of layer 0: one call a
layer gives what the GPU computes.
"""


def register():
    """Called by vLLM when it loads its plugins."""
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
