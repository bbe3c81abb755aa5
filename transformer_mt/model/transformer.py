"""The encoder-decoder Transformer, from ids to logits.

Shapes:
    B  batch                 S  source length       T  target length      L  either length
    D  model width           H  heads               K  head width, D / H
    V  target vocabulary     R  rows (hypotheses) of incremental decoding
Masks are bool and True means "may attend". A pack, used in training on CUDA, holds the sentences of
a micro-batch in one row (text/packing.py).

Reference: Vaswani et al. 2017, Attention Is All You Need, section 3.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.config.keys import ModelConfig
from transformer_mt.model.kernels import Dropout, Linear, linear, prepare_keys_values
from transformer_mt.model.multi_head_attention import (
    Attention,
    CrossAttention,
    DecoderState,
    LayerCache,
    Mask,
    PositionCache,
    SelfAttention,
    attention_weights,
)
from transformer_mt.model.packed_attention import PackMask


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, without dropout, and restores its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def sinusoid(positions: Tensor, d_model: int) -> Tensor:
    """Computes positional encodings (section 3.5).

    Args:
        positions: Positions, counted from 0, (L,).
        d_model: Model width, even.

    Returns:
        Sines at even and cosines at odd indices, (L, D), float32.
    """
    frequencies = torch.exp(
        torch.arange(0, d_model, 2, dtype=torch.float32, device=positions.device)
        * (-math.log(10000.0) / d_model)
    )  # (D / 2,)
    angles = positions[:, None] * frequencies  # (L, D / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (L, D)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, applied at each position (section 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff)
        self.outer = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, L, D) to (B, L, D)."""
        # Not `relu_`: `inner` may return a view, whose change in place costs autograd a copy.
        activations = self.inner(x).relu()  # (B, L, d_ff)
        return self.outer(self.dropout(activations))  # (B, L, D)


class Residual(nn.Module):
    """The residual connection, dropout and layer norm around a sublayer (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.placement: Literal["post", "pre", "sublayer"] = config.norm
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Adds the output of a sublayer to its input, (B, L, D) to (B, L, D)."""
        if self.placement == "post":
            return self.norm(x + self.dropout(sublayer(x)))
        if self.placement == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        return x + self.norm(self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Maps (B, S, D) to (B, S, D); the mask is (B, 1, 1, S), or that of a pack."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask, causal=False))
        x = self.residuals[1](x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, memory_mask: Mask, mask: PackMask | None = None
    ) -> Tensor:
        """Maps (B, T, D) to (B, T, D); the memory is (B, S, D) and its mask (B, 1, 1, S).

        In a pack `mask` keeps the targets apart. In a padded batch padding is at the end, so the
        causal mask alone hides it from every real position.
        """
        keys, values = self.cross_attention.project_memory(memory)  # (B, H, S, K) each
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask, causal=True))
        x = self.residuals[1](x, lambda y: self.cross_attention(y, keys, values, memory_mask))
        x = self.residuals[2](x, self.feed_forward)
        return x

    def begin_decoding(self, memory: Tensor, max_length: int) -> LayerCache:
        """Makes a cache of `max_length` positions for each source of the memory, (B, S, D)."""
        keys, values = prepare_keys_values(*self.cross_attention.project_memory(memory))
        self_keys, self_values = PositionCache(keys, max_length), PositionCache(values, max_length)
        return LayerCache(self_keys, self_values, keys, values)

    def decode_position(
        self, x: Tensor, cache: LayerCache, memory_mask: Tensor, position: int
    ) -> Tensor:
        """Computes the layer at one position, (R, 1, D) to (R, 1, D), and adds it to the cache."""
        x = self.residuals[0](x, lambda y: self.self_attention.decode_position(y, cache, position))
        x = self.residuals[1](
            x, lambda y: self.cross_attention.decode_position(y, cache, memory_mask)
        )
        x = self.residuals[2](x, self.feed_forward)
        return x


class Transformer(nn.Module):
    """The whole model, from ids to logits.

    Args:
        config: Sizes and variants.
        src_size: Size of the source vocabulary.
        tgt_size: Size of the target vocabulary, V.
        pad_id: Id of padding, which no real position attends to.

    Raises:
        ValueError: If embeddings are tied and the vocabularies differ in size.
    """

    def __init__(self, config: ModelConfig, src_size: int, tgt_size: int, pad_id: int) -> None:
        super().__init__()
        if config.tie_embeddings and src_size != tgt_size:
            raise ValueError(
                f"tied embeddings need vocabularies of one size, not {src_size} and {tgt_size}"
            )
        self.d_model, self.pad_id = config.d_model, pad_id
        # Tied embeddings are one parameter, so checkpoints store them once.
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
        self.encodings: Tensor
        self.register_buffer("encodings", torch.empty(0, config.d_model), persistent=False)
        if not self.src_embedding.is_meta:  # drawing would import SymPy, which takes a second
            self._initialise()

    def _initialise(self) -> None:
        """Draws embeddings from N(0, 1/D), projections from Xavier uniform; sets biases to zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("_embedding"):
                nn.init.normal_(parameter, std=self.d_model**-0.5)
            elif name.endswith((".qkv.weight", ".kv.weight")):
                # A fused weight holds several projections; Xavier's bound applies to each.
                for projection in torch.split(parameter, self.d_model):
                    nn.init.xavier_uniform_(projection)
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def output_weight(self) -> Tensor:
        """Weight of the projection from the decoder's output to logits, (V, D)."""
        return self.src_embedding if self.tied else self.out_embedding

    @property
    def tgt_weight(self) -> Tensor:
        """Weight of the target embedding, (V, D)."""
        return self.src_embedding if self.tied else self.tgt_embedding

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.src_embedding.device

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Computes the logits of every target position, as `decoder_output`; gives (B, T, V)."""
        return self.logits(self.decoder_output(src, tgt_in))

    def decoder_output(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Computes the decoder's output, (B, T, D), which `output_weight` projects to logits.

        Args:
            src: Source ids, padded, (B, S).
            tgt_in: BOS and target ids, padded, (B, T).
        """
        mask = self.src_mask(src)
        return self.decode(tgt_in, self.encode(src, mask), mask)

    def src_mask(self, src: Tensor) -> Tensor:
        """Marks source positions that are not padding, (B, S) to (B, 1, 1, S)."""
        return (src != self.pad_id)[:, None, None, :]

    def encode(self, src: Tensor, mask: Mask, encodings: Tensor | None = None) -> Tensor:
        """Computes the memory, (B, S, D), of padded source ids, (B, S), and their `src_mask`.

        Those of a pack, (1, S), come with the positional encodings of their tokens, (S, D).
        """
        if encodings is None:
            encodings = self.encodings_up_to(src.size(1))[: src.size(1)]
        x = self._embed(src, self.src_embedding, encodings)  # (B, S, D)
        for layer in self.encoder:
            x = layer(x, mask)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(
        self,
        tgt_in: Tensor,
        memory: Tensor,
        memory_mask: Mask,
        encodings: Tensor | None = None,
        mask: PackMask | None = None,
    ) -> Tensor:
        """Computes the decoder's output from the memory, (B, S, D), and its mask, (B, 1, 1, S).

        Ids of a pack, (1, T), come with the positional encodings of their tokens, (T, D), and the
        mask of their self-attention.
        """
        if encodings is None:
            encodings = self.encodings_up_to(tgt_in.size(1))[: tgt_in.size(1)]
        x = self._embed(tgt_in, self.tgt_weight, encodings)  # (B, T, D)
        for layer in self.decoder:
            x = layer(x, memory, memory_mask, mask)
        return self.decoder_norm(x)

    def logits(self, decoder_output: Tensor) -> Tensor:
        """Projects the decoder's output to logits, (..., D) to (..., V)."""
        return linear(decoder_output, self.output_weight)

    def begin_decoding(self, src: Tensor, max_length: int) -> DecoderState:
        """Encodes padded source ids, (B, S), to decode up to `max_length` positions in B rows."""
        mask = self.src_mask(src)
        memory = self.encode(src, mask)
        layers = [layer.begin_decoding(memory, max_length) for layer in self.decoder]  # type: ignore[operator]
        return DecoderState(layers, mask)

    def next_logits(self, ids: Tensor, state: DecoderState) -> Tensor:
        """Computes one position of incremental decoding.

        Args:
            ids: The token at `state.position` in each row, (R,).
            state: From `begin_decoding`; advanced by one position.

        Returns:
            Logits of the following token, (R, V), equal to those of `forward` at this position.
        """
        encodings = self.encodings_up_to(state.position + 1)[state.position][None]  # (1, D)
        x = self._embed(ids[:, None], self.tgt_weight, encodings)  # (R, 1, D)
        for layer, cache in zip(self.decoder, state.layers, strict=True):
            x = layer.decode_position(x, cache, state.memory_mask, state.position)  # type: ignore[operator]
        state.position += 1
        return self.logits(self.decoder_norm(x)[:, 0])  # (R, V)

    @torch.no_grad()
    def attention_weights(self, src: Tensor, tgt_in: Tensor) -> dict[str, list[Tensor]]:
        """Computes the attention weights of every layer, in float32.

        Padded target positions have weights too; callers should ignore their rows.

        Args:
            src: Source ids, padded, (B, S).
            tgt_in: BOS and target ids, padded, (B, T).

        Returns:
            `encoder`, (B, H, S, S) each; `decoder`, (B, H, T, T); `cross`, (B, H, T, S).
        """
        weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}
        thread = get_ident()

        def record(into: list[Tensor], module: nn.Module, args: tuple[Any, ...]) -> None:
            q, k, _, mask, causal = args
            if get_ident() == thread:  # others may use the model meanwhile
                into.append(attention_weights(q, k, mask, causal))

        with ExitStack() as hooks:  # removes them at the end
            for name, module in self.named_modules():
                if isinstance(module, Attention):
                    kind = "cross" if "cross_attention" in name else name.partition(".")[0]
                    recorder = partial(record, weights[kind])
                    hooks.enter_context(module.register_forward_pre_hook(recorder))
            self.decoder_output(src, tgt_in)
        return weights

    def encodings_up_to(self, length: int) -> Tensor:
        """Returns the encodings of at least `length` positions, (L, D), and keeps them."""
        table = self.encodings
        if length > len(table):
            positions = torch.arange(max(length, 2 * len(table), 256), device=self.device)
            table = sinusoid(positions, self.d_model).to(self.src_embedding.dtype)
            self.encodings = table  # another thread may keep its own, perhaps shorter, table
        return table

    def _embed(self, ids: Tensor, weight: Tensor, encodings: Tensor) -> Tensor:
        """Embeds ids, (B, L), at positions with the encodings (L, D) (sections 3.4, 3.5)."""
        embedded = F.embedding(ids, weight) * math.sqrt(self.d_model)  # (B, L, D)
        return self.dropout(embedded + encodings)


def parameter_shapes(
    config: ModelConfig, src_size: int, tgt_size: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a model by name, without allocating any.

    Raises:
        ValueError: If a parameter would have more bytes than 64 bits can count.
    """
    try:
        with torch.device("meta"):
            model = Transformer(config, src_size, tgt_size, pad_id=0)
    except RuntimeError as error:
        raise ValueError(f"model too large: {error}") from None
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
