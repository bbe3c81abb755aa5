"""Memory that a model needs in training, computed only from its configuration."""

import torch

from transformer_mt.config.keys import ModelConfig
from transformer_mt.errors import DeviceError
from transformer_mt.system.device import total_memory

_BYTES_PER_PARAMETER = 4 * 4
"""Weight, gradient and Adam's two moments in float32."""


def require_memory(config: ModelConfig, device: torch.device) -> None:
    """Refuses a model that cannot fit, before text is prepared and weights are allocated.

    Args:
        config: The sizes of the model.
        device: Where it would be trained.

    Raises:
        DeviceError: If the device has too little memory even for the layers alone.
    """
    needed, available = _BYTES_PER_PARAMETER * count_layer_parameters(config), total_memory(device)
    if needed > available:
        keys = ("d_model", "d_ff", "encoder_layers", "decoder_layers")
        sizes = ", ".join(f"model.{key} = {getattr(config, key)}" for key in keys)
        raise DeviceError(
            f"{sizes}: the model needs at least {needed / 1e9:,.0f} GB to be trained, and this"
            f" {device.type} device has {available / 1e9:,.0f} GB; choose smaller sizes"
        )


def count_layer_parameters(config: ModelConfig) -> int:
    """Counts the parameters of the encoder's and the decoder's layers.

    Embeddings and the final layer norms are not counted. Nothing is allocated, whatever the sizes.
    """
    attention = 4 * config.d_model**2 + 4 * config.d_model * config.attention_bias
    feed_forward = 2 * config.d_model * config.d_ff + config.d_ff + config.d_model
    norm = 2 * config.d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer
