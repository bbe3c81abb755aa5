"""Memory that training needs: models that are too large, micro-batches that fit."""

import torch

from transformer_mt.config.keys import ModelConfig
from transformer_mt.errors import DeviceError
from transformer_mt.system.device import total_memory
from transformer_mt.training.engine import Engine
from transformer_mt.training.flops import FLOPS_PER_WEIGHT, flops_per_token
from transformer_mt.training.loss import CHUNK_ROWS

_BYTES_PER_PARAMETER = {"cpu": 4 * 7, "cuda": 4 * 4}
"""Weight, gradient and Adam's two moments in float32; on a CPU also the copies of a weight and its
moments that are written as a checkpoint, which a GPU's memory does not hold."""
_MORE_BYTES_PER_PARAMETER = 4 * 2
"""The moving average, and a buffer for sums over processes or weights in half precision."""
_BYTES_PER_LOGIT = 12
"""A logit, its probability and its gradient, for a chunk of positions."""
_USED_SHARE = {"cpu": 0.25, "cuda": 0.6}
"""Part of the memory that is planned for. Other programs use a CPU's memory too, and if it runs out
Linux ends a process and reports no error; on CUDA, PyTorch itself and fragments need some.
"""


def require_memory(config: ModelConfig, device: torch.device) -> None:
    """Refuses a model whose layers alone need too much memory, before anything is allocated."""
    parameters = sum(flops_per_token(config, tgt_size=0)) // FLOPS_PER_WEIGHT
    needed, available = _BYTES_PER_PARAMETER[device.type] * parameters, total_memory(device)
    if needed > available:
        keys = ("d_model", "d_ff", "encoder_layers", "decoder_layers")
        sizes = ", ".join(f"model.{key} = {getattr(config, key)}" for key in keys)
        raise DeviceError(
            f"{sizes}: the model needs at least {needed / 1e9:,.0f} GB to be trained, and this"
            f" {device.type} device has {available / 1e9:,.0f} GB; choose smaller sizes"
        )


def bytes_per_position(config: ModelConfig) -> int:
    """Estimates what a source and a target position keep in memory for the backward pass.

    Residual streams are float32 in every precision, so that half precision saves little.
    """
    encoder = 9 * config.d_model + 2 * config.d_ff
    decoder = 15 * config.d_model + 2 * config.d_ff
    return 4 * (config.encoder_layers * encoder + config.decoder_layers * decoder)


def find_micro_batch_tokens(engine: Engine) -> int:
    """Finds a bound on micro-batches for the total memory, which is the same at every start.

    It is a power of two and holds a pair of `data.max_length`; all processes get the smallest. The
    processes of a CPU are taken to be on one machine: more of them also get smaller micro-batches.
    """
    config, model, device, processes = engine.config, engine.model, engine.device, engine.processes
    on_cpu = device.type == "cpu"
    copies, workers = (processes.world_size, engine.workers) if on_cpu else (1, 1)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    left = _USED_SHARE[device.type] * total_memory(device)
    bytes_per_parameter = _BYTES_PER_PARAMETER[device.type] + _MORE_BYTES_PER_PARAMETER
    left -= copies * bytes_per_parameter * parameters
    left -= workers * 4 * parameters  # each worker's own gradient

    def fits(tokens: int) -> bool:
        logits = min(tokens, CHUNK_ROWS[device.type]) * model.output_weight.size(0)
        activations = tokens * bytes_per_position(config.model)
        return workers * (_BYTES_PER_LOGIT * logits + activations) <= left

    tokens = 1 << config.data.max_length.bit_length()
    while fits(2 * tokens):
        tokens *= 2
    return -int(*processes.max(-tokens))
