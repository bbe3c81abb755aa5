"""A checkpoint as a model of Hugging Face's transformers, which writing does not need.

Post-norm is Marian, pre-norm Pegasus: their layers are those of `model/transformer.py`, with one
difference. Their positional encodings are all sines, then all cosines, so every vector of the
residual stream has its even dimensions first.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_mt.checkpoints.checkpoint import Checkpoint, write_tensors
from transformer_mt.checkpoints.layout import CONFIG, GENERATION_CONFIG, MODEL
from transformer_mt.config.keys import Config, ModelConfig
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import Transformer
from transformer_mt.text.tokenizer_json import tokenizer_json
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID, SentencePieceModel
from transformer_mt.translation.agreement import require_same_scores, score_with_transformers
from transformer_mt.translation.runtime import EXTRA_LENGTH

_ARCHITECTURES = {
    "post": ("marian", "MarianMTModel"),
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
}
"""Type and class of the model, by the placement of its norms."""

_LINEARS = {
    "self_attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention.out": ["self_attn.out_proj"],
    "cross_attention.q": ["encoder_attn.q_proj"],
    "cross_attention.kv": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "cross_attention.out": ["encoder_attn.out_proj"],
    "feed_forward.inner": ["fc1"],
    "feed_forward.outer": ["fc2"],
}
"""Linear layers of a layer, each with the names of those that it is split into."""
_NORMS = {
    "encoder": ["self_attn_layer_norm", "final_layer_norm"],
    "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
}


def write_transformers(
    folder: Path, checkpoint: Checkpoint, model: Transformer, positions: Tensor
) -> dict[str, object]:
    """Writes a model with its tokenizer; gives the values of `usage_transformers.md`.

    Args:
        folder: An empty directory.
        checkpoint: The configuration and the vocabulary.
        model: The weights.
        positions: Encodings of as many positions as the model is to have, (L, D).

    Raises:
        ConfigError: If transformers has no such model, or no tokenizer gives the ids of the
            vocabulary, as for two vocabularies; or if it is installed and gives other scores.
    """
    config, vocab = checkpoint.config, checkpoint.vocab.src
    if config.model.norm not in _ARCHITECTURES:
        raise ConfigError(
            f"model.norm = {config.model.norm}: transformers supports only post and pre"
        )
    if not checkpoint.vocab.shared:
        raise ConfigError("vocab.shared = false: tokenizer.json holds only one vocabulary")
    symbols = config.vocab.symbols
    never: dict[str, Any] = {}
    if symbols:  # which our search leaves out before it computes probabilities
        suppressed = checkpoint.vocab.symbol_ids(symbols)
        never = {"suppress_tokens": suppressed, "renormalize_logits": True}
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    ids["decoder_start_token_id"] = BOS_ID
    max_new_tokens = config.data.max_length + EXTRA_LENGTH
    files = {
        CONFIG: _model_config(config, vocab.size, len(positions)) | ids,
        GENERATION_CONFIG: {**ids, "max_new_tokens": max_new_tokens, **never},
        "tokenizer.json": tokenizer_json(vocab, symbols),
        "tokenizer_config.json": _tokenizer_config(vocab, len(positions)),
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    tensors = {name: tensor.clone() for name, tensor in _tensors(config.model, model, positions)}
    write_tensors(folder / MODEL, tensors, {"format": "pt"})
    if find_spec("transformers"):
        require_same_scores(checkpoint, model, score_with_transformers(folder))
    return {"extra": EXTRA_LENGTH, "default": max_new_tokens}


def _tokenizer_config(vocab: SentencePieceModel, max_positions: int) -> dict[str, Any]:
    names = vocab.pieces(range(EOS_ID + 1))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": names[PAD_ID],
        "unk_token": names[UNK_ID],
        "bos_token": names[BOS_ID],
        "eos_token": names[EOS_ID],
        "split_special_tokens": True,  # <s> in a line is text
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_positions,
    }


def _model_config(config: Config, vocab_size: int, max_positions: int) -> dict[str, Any]:
    model = config.model
    model_type, architecture = _ARCHITECTURES[model.norm]
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": "float32",
        "vocab_size": vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "encoder_attention_heads": model.n_heads,
        "decoder_attention_heads": model.n_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": max_positions,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "forced_eos_token_id": None,
        "tie_word_embeddings": model.tie_embeddings,
        "share_encoder_decoder_embeddings": model.tie_embeddings,
    }


def _tensors(
    config: ModelConfig, model: Transformer, positions: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Gives the tensors by the names of transformers."""
    order = torch.cat((torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)))
    if config.tie_embeddings or config.norm == "pre":  # Pegasus has it even where nothing uses it
        yield "model.shared.weight", model.src_embedding[:, order]
    if not config.tie_embeddings:
        yield "model.encoder.embed_tokens.weight", model.src_embedding[:, order]
        yield "model.decoder.embed_tokens.weight", model.tgt_weight[:, order]
        yield "lm_head.weight", model.output_weight[:, order]
    for stack in ("encoder", "decoder"):
        prefix = f"model.{stack}"
        yield f"{prefix}.embed_positions.weight", positions[:, order]
        for i, layer in enumerate(model.get_submodule(stack).children()):
            for name, tensor in _layer_tensors(layer, _NORMS[stack], order):
                yield f"{prefix}.layers.{i}.{name}", tensor
        final_norm = model.get_submodule(f"{stack}_norm")
        for name, parameter in final_norm.named_parameters():  # none of post-norm
            yield f"{prefix}.layer_norm.{name}", parameter[order]


def _layer_tensors(
    layer: nn.Module, norms: list[str], order: Tensor
) -> Iterator[tuple[str, Tensor]]:
    for name, parts in _LINEARS.items():
        if name.startswith("cross_attention") and len(norms) == 2:  # an encoder layer
            continue
        linear: Any = layer.get_submodule(name)
        weight, bias = linear.weight, linear.bias
        if bias is None:
            bias = weight.new_zeros(len(weight))
        if name.endswith((".out", ".outer")):  # into the residual stream
            weight, bias = weight[order], bias[order]
        else:  # out of it
            weight = weight[:, order]
        rows = zip(parts, weight.chunk(len(parts)), bias.chunk(len(parts)), strict=True)
        for part, part_weight, part_bias in rows:
            yield f"{part}.weight", part_weight
            yield f"{part}.bias", part_bias
    for name, residual in zip(norms, layer.get_submodule("residuals").children(), strict=True):
        for kind, parameter in residual.get_submodule("norm").named_parameters():
            yield f"{name}.{kind}", parameter[order]
