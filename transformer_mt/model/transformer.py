"""The encoder-decoder Transformer. Knows ids and tensors, no files and no strings.

Shapes: B batch, S source length, T target length, D model width, H heads, K head width,
V vocabulary. Masks are bool and True means "may attend".

Reference: Vaswani et al. 2017, Attention Is All You Need, section 3.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.config import ModelConfig
from transformer_mt.model.attention import CrossAttention, Maps, SelfAttention
from transformer_mt.model.cpu_kernels import Dropout, Linear, Packable
from transformer_mt.model.decoder_cache import Cache, DecoderState, LayerCache


def sinusoid(positions: Tensor, d_model: int) -> Tensor:
    """Computes position encodings.

    Args:
        positions: Positions from 0, (L,).
        d_model: Model width, even.

    Returns:
        Sines in even and cosines in odd places, (L, D), float32.

    Reference:
        Section 3.5.
    """
    rates = torch.exp(
        torch.arange(0, d_model, 2, device=positions.device) * (-math.log(10000.0) / d_model)
    )
    angles = positions[:, None] * rates  # (L, D / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between, at each position (section 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff)
        self.outer = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        return self.outer(self.dropout(self.inner(x).relu_()))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """The residual connection, dropout and layer norm around a sublayer (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.placement: Literal["post", "pre", "sublayer"] = config.norm
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Applies a sublayer to x, (B, T, D), and adds what it gives."""
        out: Tensor
        if self.placement == "post":
            out = self.norm(x + self.dropout(sublayer(x)))
        elif self.placement == "pre":
            out = x + self.dropout(sublayer(self.norm(x)))
        else:
            out = x + self.norm(self.dropout(sublayer(x)))
        return out


def _heads(config: ModelConfig) -> tuple[int, int, bool, float]:
    return config.d_model, config.n_heads, config.attention_bias, config.attention_dropout


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = SelfAttention(*_heads(config)), FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor, maps: Maps | None) -> Tensor:
        """Maps (B, S, D) to (B, S, D)."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask, False, maps))
        out: Tensor = self.residuals[1](x, self.feed_forward)
        return out


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the memory, feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(*_heads(config))
        self.cross_attention = CrossAttention(*_heads(config))
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, memory_mask: Tensor, maps: tuple[Maps, Maps] | None
    ) -> Tensor:
        """Maps (B, T, D) to (B, T, D); maps receive self- and cross-attention weights."""
        self_maps, cross_maps = maps or (None, None)
        keys, values = self.cross_attention.project_memory(memory)
        # Padding stands at the end, so the causal mask alone hides it from every real position.
        x = self.residuals[0](x, lambda y: self.self_attention(y, None, True, self_maps))
        x = self.residuals[1](
            x, lambda y: self.cross_attention(y, keys, values, memory_mask, cross_maps)
        )
        x = self.residuals[2](x, self.feed_forward)
        return x

    def step(self, x: Tensor, cache: LayerCache, memory_mask: Tensor, length: int) -> Tensor:
        """Maps one position, (R, 1, D) to (R, 1, D), and adds it to the cache."""
        x = self.residuals[0](x, lambda y: self.self_attention.step(y, cache, length))
        x = self.residuals[1](x, lambda y: self.cross_attention.step(y, cache, memory_mask))
        x = self.residuals[2](x, self.feed_forward)
        return x


class Transformer(Packable):
    """The whole model, from ids to logits.

    Args:
        config: Sizes and variants.
        src_size: Source vocabulary.
        tgt_size: Target vocabulary.
        pad_id: Id of padding, which nothing attends to.

    Raises:
        ValueError: If embeddings are tied and the vocabularies differ in size.
    """

    def __init__(self, config: ModelConfig, src_size: int, tgt_size: int, pad_id: int) -> None:
        super().__init__()
        if config.tie_embeddings and src_size != tgt_size:
            raise ValueError(f"tied embeddings need one vocabulary, not {src_size} and {tgt_size}")
        self.d_model, self.n_heads, self.pad_id = config.d_model, config.n_heads, pad_id
        # Tied, the one matrix is a parameter once: checkpoints hold it once too.
        self.src_embedding = nn.Parameter(torch.empty(src_size, config.d_model))
        if not config.tie_embeddings:
            self.tgt_embedding = nn.Parameter(torch.empty(tgt_size, config.d_model))
            self.out_embedding = nn.Parameter(torch.empty(tgt_size, config.d_model))
        self.tied = config.tie_embeddings
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        final_norm = config.norm != "post"
        self.encoder_norm = nn.LayerNorm(config.d_model) if final_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model) if final_norm else nn.Identity()
        self.positions: Tensor
        self.register_buffer("positions", torch.empty(0, config.d_model), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Embeddings from N(0, 1/D), each projection Xavier uniform, biases zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("_embedding"):
                nn.init.normal_(parameter, std=self.d_model**-0.5)
            elif name.endswith((".qkv.weight", ".kv.weight")):
                # A fused matrix is several projections, and Xavier's bound is that of each.
                for projection in torch.split(parameter, self.d_model):
                    nn.init.xavier_uniform_(projection)
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def matrix(self) -> Tensor:
        """What makes logits of the decoder's output, (V, D)."""
        return self.src_embedding if self.tied else self.out_embedding

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.src_embedding.device

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Computes logits, (B, T, V), of padded ids, (B, S) and (B, T)."""
        return self.multiply(self.hidden(src, tgt_in), None)

    def hidden(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Computes what logits are made of by `matrix`, (B, T, D), of (B, S) and (B, T)."""
        return self._decoder(tgt_in, self.encode(src), self.src_mask(src), None)

    def src_mask(self, src: Tensor) -> Tensor:
        """Marks real source positions, (B, S) to (B, 1, 1, S)."""
        return (src != self.pad_id)[:, None, None, :]

    def encode(self, src: Tensor, maps: Maps | None = None) -> Tensor:
        """Encodes source ids.

        Args:
            src: Padded ids, (B, S).
            maps: Receives each layer's attention weights, (B, H, S, S), if given.

        Returns:
            The memory, (B, S, D).
        """
        mask = self.src_mask(src)
        x = self._embed(src, self.src_embedding, 0)
        for layer in self.encoder:
            x = layer(x, mask, maps)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(
        self,
        tgt_in: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        maps: tuple[Maps, Maps] | None = None,
    ) -> Tensor:
        """Computes the logits of every target position at once.

        Args:
            tgt_in: Begin mark and target ids, padded, (B, T).
            memory: The encoder's output, (B, S, D).
            memory_mask: Real source positions, (B, 1, 1, S).
            maps: Two lists that receive each layer's self-attention weights, (B, H, T, T),
                and cross-attention weights, (B, H, T, S), if given.

        Returns:
            Logits, (B, T, V).
        """
        return self.multiply(self._decoder(tgt_in, memory, memory_mask, maps), None)

    def _decoder(
        self, tgt_in: Tensor, memory: Tensor, memory_mask: Tensor, maps: tuple[Maps, Maps] | None
    ) -> Tensor:
        x = self._embed(tgt_in, self._tgt_matrix(), 0)
        for layer in self.decoder:
            x = layer(x, memory, memory_mask, maps)
        hidden: Tensor = self.decoder_norm(x)
        return hidden

    def start(self, src: Tensor, max_length: int) -> DecoderState:
        """Encodes source ids, (B, S), and makes room to decode `max_length` target positions."""
        memory = self.encode(src)
        layers = []
        for layer in self.decoder:
            keys, values = layer.cross_attention.project_memory(memory)  # type: ignore[union-attr, operator]
            keys, values = keys.contiguous(), values.contiguous()  # read anew in every step
            own = [Cache(keys, max_length, len(src), self.d_model) for _ in range(2)]
            layers.append(LayerCache(own[0], own[1], keys, values))
        return DecoderState(layers, self.src_mask(src))

    def next_logits(self, ids: Tensor, state: DecoderState) -> Tensor:
        """Computes the logits of the next position and adds this one to the state.

        Args:
            ids: The token at position `state.length` of each row, (R,).
            state: From `start`, which makes a row for each source; changed in place.

        Returns:
            Logits, (R, V), equal to `decode`'s at this position.
        """
        x = self._embed(ids[:, None], self._tgt_matrix(), state.length)
        for layer, cache in zip(self.decoder, state.layers, strict=True):
            x = layer.step(x, cache, state.memory_mask, state.length)  # type: ignore[operator]
        state.length += 1
        return self.multiply(self.decoder_norm(x)[:, 0], None)

    def _tgt_matrix(self) -> Tensor:
        return self.src_embedding if self.tied else self.tgt_embedding

    def _embed(self, ids: Tensor, matrix: Tensor, start: int) -> Tensor:
        """Embeds ids, (B, L), that stand from position `start` on; gives (B, L, D)."""
        embedded = F.embedding(ids, matrix) * math.sqrt(self.d_model)  # section 3.4
        self.reserve(start + ids.size(1))
        positions = self.positions[start : start + ids.size(1)]
        dropped: Tensor = self.dropout(embedded + positions)
        return dropped

    def reserve(self, length: int) -> None:
        """Computes the encodings of positions below `length` beforehand."""
        if length > len(self.positions):
            room = max(length, 2 * len(self.positions), 256)
            steps = torch.arange(room, device=self.device)
            self.positions = sinusoid(steps, self.d_model).to(self.src_embedding.dtype)
