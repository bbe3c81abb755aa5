"""A checkpoint as a CTranslate2 model, for translation without PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.exported import ExportRecord, write_record
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import DecoderLayer, Transformer
from transformer_mt.system.extras import require_package
from transformer_mt.text.normalization import INVISIBLE, LIGATURES
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, UNK_ID
from transformer_mt.translation.agreement import require_same_scores, score_with_ctranslate2
from transformer_mt.translation.ctranslate2_runtime import vocabulary_tokens
from transformer_mt.translation.options import Quantization
from transformer_mt.translation.runtime import EXTRA_LENGTH

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

_COMPOSED = f"""\
    invisible, ligatures = {ascii(INVISIBLE)}, {ascii(LIGATURES)}
    text = text.translate(str.maketrans({{**dict.fromkeys(invisible), **ligatures}}))
    text = unicodedata.normalize("NFC", text)
"""
"""How text is read if `data.normalize` is "nfc"."""


def write_ctranslate2(
    folder: Path,
    checkpoint: Checkpoint,
    model: Transformer,
    positions: Tensor,
    quantization: Quantization,
    raw: bool,
) -> dict[str, object]:
    """Writes a model with its SentencePiece models; gives the values of `usage_ctranslate2.md`.

    Args:
        folder: An empty directory.
        checkpoint: The configuration and the vocabulary.
        model: The weights.
        positions: Encodings of as many positions as the model is to have, (L, D).
        quantization: Type in which the weights are stored.
        raw: Whether the weights are not their moving average even if there is one.

    Raises:
        ConfigError: If CTranslate2 is not installed, does not support the model, or gives other
            scores with it.
    """
    require_package("CTranslate2", "ctranslate2", "this")
    if checkpoint.config.model.norm == "sublayer":
        raise ConfigError("model.norm = sublayer: CTranslate2 supports only post and pre")
    spec = _build_spec(checkpoint, model, positions)
    spec.validate()
    spec.save(str(folder))  # to compare before the weights are rounded
    require_same_scores(checkpoint, model, score_with_ctranslate2(folder, checkpoint.vocab))
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    vocab_files = checkpoint.vocab.save(folder)
    write_record(folder, _record(checkpoint, quantization, len(positions), raw))
    symbols = checkpoint.config.vocab.symbols
    return {
        "src_model": vocab_files[0].name,
        "tgt_model": vocab_files[-1].name,
        "never": f", suppress_sequences={[[each] for each in symbols]}" if symbols else "",
        "extra": EXTRA_LENGTH,
        "read": _COMPOSED if checkpoint.vocab.form == "nfc" else "",
    }


def _record(
    checkpoint: Checkpoint, quantization: Quantization, positions: int, raw: bool
) -> ExportRecord:
    """Describes what is exported; `write_record` adds the digests of its files."""
    return ExportRecord(
        checkpoint=checkpoint.path.resolve().name,
        checkpoint_digest=checkpoint.digest,
        step=checkpoint.step,
        moving_average=checkpoint.is_averaged(raw),
        raw=checkpoint.is_raw(raw),
        quantization=quantization,
        positions=positions,
        config=checkpoint.config,
        sources=checkpoint.sources,
        files={},
    )


def _build_spec(checkpoint: Checkpoint, model: Transformer, positions: Tensor) -> "TransformerSpec":
    """Describes the model, with its weights and vocabularies, to CTranslate2."""
    from ctranslate2.specs import TransformerSpec

    config, vocab = checkpoint.config.model, checkpoint.vocab
    layers = config.encoder_layers, config.decoder_layers
    spec = TransformerSpec.from_config(layers, config.n_heads, pre_norm=config.norm == "pre")
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = _array(positions)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding)
    spec.decoder.embeddings.weight = _array(model.tgt_weight)
    spec.decoder.projection.weight = _array(model.output_weight)
    if config.norm == "pre":
        _fill_norm(spec.encoder.layer_norm, model.encoder_norm)
        _fill_norm(spec.decoder.layer_norm, model.decoder_norm)
    layer_specs = [*spec.encoder.layer, *spec.decoder.layer]
    for layer_spec, layer in zip(layer_specs, [*model.encoder, *model.decoder], strict=True):
        _fill_layer(layer_spec, layer)
    src_tokens, tgt_tokens = vocabulary_tokens(vocab)
    spec.register_source_vocabulary(src_tokens)
    spec.register_target_vocabulary(tgt_tokens)
    spec.config.unk_token, spec.config.eos_token = tgt_tokens[UNK_ID], tgt_tokens[EOS_ID]
    spec.config.bos_token = spec.config.decoder_start_token = tgt_tokens[BOS_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = torch.nn.LayerNorm(1).eps
    return spec


def _fill_layer(spec: Any, layer: Any) -> None:
    """Copies the weights of an encoder or decoder layer."""
    self_attention, ffn = spec.self_attention, spec.ffn
    linears = [
        (self_attention.linear[0], layer.self_attention.qkv),
        (self_attention.linear[1], layer.self_attention.out),
        (ffn.linear_0, layer.feed_forward.inner),
        (ffn.linear_1, layer.feed_forward.outer),
    ]
    norms = [self_attention.layer_norm, ffn.layer_norm]
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        linears += zip(spec.attention.linear, (cross.q, cross.kv, cross.out), strict=True)
        norms.insert(1, spec.attention.layer_norm)
    for linear_spec, linear in linears:
        linear_spec.weight = _array(linear.weight)
        if linear.bias is not None:
            linear_spec.bias = _array(linear.bias)
    for norm_spec, residual in zip(norms, layer.residuals, strict=True):
        _fill_norm(norm_spec, residual.norm)


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().numpy()
