"""A checkpoint as a CTranslate2 model, for translating without PyTorch."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transformer_mt import __version__
from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import Transformer, sinusoid
from transformer_mt.system.files import atomic_directory
from transformer_mt.text.vocabulary import PAD_ID
from transformer_mt.translation.translator import EXTRA_LENGTH

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

TYPES = ("float32", "float16", "bfloat16", "int8", "int16")
"""How CTranslate2 can keep the weights."""

_CARD = """\
# {name}

A Transformer that translates from {config.data.src_lang} to {config.data.tgt_lang}, exported by
transformer-mt {version} from `{path}` for [CTranslate2](https://opennmt.net/CTranslate2/). It has
{parameters:,} parameters, {config.model.encoder_layers}+{config.model.decoder_layers} layers of
width {config.model.d_model} and weights in {quantization}. Trained on `{config.data.path}` for
{step:,} steps; the run's best validation BLEU, in fp32 by greedy search, is {bleu}.

    import ctranslate2, sentencepiece

    src = sentencepiece.SentencePieceProcessor("{src_model}")
    tgt = sentencepiece.SentencePieceProcessor("{tgt_model}")
    translator = ctranslate2.Translator(".")
    text = " ".join("...".split())  # white space as in training
    found = translator.translate_batch([src.encode(text, out_type=str)], beam_size=4)
    print(tgt.decode(found[0].hypotheses[0]))

transformer-mt ends a translation {extra} pieces beyond its source, and splits lines of more than
{config.data.max_length} pieces; CTranslate2 knows `max_decoding_length` and splits nothing.
"""


def export(checkpoint: Checkpoint, output: Path, quantization: str, raw: bool = False) -> Path:
    """Writes a CTranslate2 model with its SentencePiece models and a model card.

    Args:
        checkpoint: What to export.
        output: The directory to make.
        quantization: One of `TYPES`, what the weights are kept in.
        raw: Takes the weights themselves although there is a moving average of them.

    Returns:
        The directory.

    Raises:
        ConfigError: If CTranslate2 is not installed or cannot express the model, the directory
            exists, or the quantization is none.
    """
    config = checkpoint.config.model
    if importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError("export needs CTranslate2: pip install 'transformer-mt[ctranslate2]'")
    if quantization not in TYPES:
        raise ConfigError(f"--quantization {quantization}: write {', '.join(TYPES)}")
    if config.norm == "sublayer":
        raise ConfigError("model.norm = sublayer: CTranslate2 knows post and pre only")
    if output.exists():
        raise ConfigError(f"{output}: exists already; name another directory")
    model = checkpoint.build_model(raw)
    with atomic_directory(output) as folder:
        spec = _spec(checkpoint, model)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(folder))
        models = checkpoint.vocab.save(folder)
        (folder / "README.md").write_text(_card(checkpoint, model, output, quantization, models))
    return output


def _spec(checkpoint: Checkpoint, model: Transformer) -> "TransformerSpec":
    from ctranslate2.specs import TransformerSpec

    config, vocab = checkpoint.config.model, checkpoint.vocab
    layers = config.encoder_layers, config.decoder_layers
    spec = TransformerSpec.from_config(layers, config.n_heads, pre_norm=config.norm == "pre")
    # A position beyond these is refused by CTranslate2; inputs this long were never trained on.
    positions = sinusoid(torch.arange(2 * checkpoint.config.data.max_length + 1024), config.d_model)
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = _array(positions)
    tied = model.tied
    tgt, out = (model.src_embedding,) * 2 if tied else (model.tgt_embedding, model.out_embedding)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding)
    spec.decoder.embeddings.weight = _array(tgt)
    spec.decoder.projection.weight = _array(out)
    if config.norm == "pre":
        _norm(spec.encoder.layer_norm, model.encoder_norm)
        _norm(spec.decoder.layer_norm, model.decoder_norm)
    for its, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _encoder_layer(its, layer)
    for its, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _decoder_layer(its, layer)
    for register, pieces in (
        (spec.register_source_vocabulary, vocab.src_pieces(range(vocab.src_size))),
        (spec.register_target_vocabulary, vocab.tgt_pieces(range(vocab.tgt_size))),
    ):
        pieces[PAD_ID] = "<pad>"  # in a vocabulary made elsewhere there may be none
        register(pieces)
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = "<s>"
    spec.config.layer_norm_epsilon = torch.nn.LayerNorm(1).eps
    return spec


def _encoder_layer(spec: Any, layer: Any) -> None:
    _self_attention(spec.self_attention, layer)
    _feed_forward(spec.ffn, layer, 1)


def _decoder_layer(spec: Any, layer: Any) -> None:
    _self_attention(spec.self_attention, layer)
    _linear(spec.attention.linear[0], layer.cross_attention.q)
    _linear(spec.attention.linear[1], layer.cross_attention.kv)
    _linear(spec.attention.linear[2], layer.cross_attention.out)
    _norm(spec.attention.layer_norm, layer.residuals[1].norm)
    _feed_forward(spec.ffn, layer, 2)


def _self_attention(spec: Any, layer: Any) -> None:
    _linear(spec.linear[0], layer.self_attention.qkv)
    _linear(spec.linear[1], layer.self_attention.out)
    _norm(spec.layer_norm, layer.residuals[0].norm)


def _feed_forward(spec: Any, layer: Any, residual: int) -> None:
    _linear(spec.linear_0, layer.feed_forward.inner)
    _linear(spec.linear_1, layer.feed_forward.outer)
    _norm(spec.layer_norm, layer.residuals[residual].norm)


def _linear(spec: Any, linear: Any) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().numpy()


def _card(
    checkpoint: Checkpoint, model: Transformer, output: Path, quantization: str, models: list[Path]
) -> str:
    best = checkpoint.progress.best_bleu
    return _CARD.format(
        name=output.name,
        version=__version__,
        path=checkpoint.path.name,
        config=checkpoint.config,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        quantization=quantization,
        step=checkpoint.progress.step,
        bleu=f"{best:.2f}" if best >= 0 else "not measured",
        src_model=models[0].name,
        tgt_model=models[-1].name,
        extra=EXTRA_LENGTH,
    )
