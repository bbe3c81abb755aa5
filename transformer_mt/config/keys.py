"""Every key, with its type, allowed values, default, meaning, and effect of a change on resume.

The files in `configs/` state what differs from the defaults; the paper's recipes state its values.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from transformer_mt.config.section import OnChange, Section
from transformer_mt.config.splits import Split, Splits


def _as_tuple(value: object) -> object:
    # An array in TOML and in JSON is a list.
    return tuple(value) if isinstance(value, list) else value


Language = Annotated[str, Field(pattern=r"^\w[^/\p{C}]*$")]
"""A language as files and columns name it. Outputs are named by it: never in another folder."""
NormalForm = Literal["nfc", "none"]


class DataConfig(Section):
    """The parallel text, and which of its pairs are trained on."""

    path: Annotated[str, Field(min_length=1), OnChange.ALLOWED]
    """A data set on the Hugging Face Hub, such as "wmt/wmt16", or a folder of text files."""
    name: Annotated[str | None, OnChange.ALLOWED] = None
    """The corpus's configuration on the hub, such as "de-en"."""
    train: Annotated[Splits, OnChange.SHAPES_CORPUS] = "train"
    """One split or a list of them: names, in a local folder also file names and patterns, or
    tables of two files, of two columns of a file, or with a weight (see docs/text.md)."""
    valid: Annotated[Split, OnChange.REFUSED] = "validation"
    """The split that training is validated on."""
    test: Annotated[Split, OnChange.ALLOWED] = "test"
    """The split that `evaluate` scores."""
    src_lang: Annotated[Language, OnChange.SHAPES_CORPUS] = "de"
    """Language to translate from, as files and columns name it."""
    tgt_lang: Annotated[Language, OnChange.SHAPES_CORPUS] = "en"
    """Language to translate to."""
    normalize: Annotated[NormalForm, OnChange.SHAPES_CORPUS] = "nfc"
    """How text is read: "nfc" composes letters and accents (Unicode NFC), spells out ligatures such
    as U+FB01, and drops soft hyphens, zero-width spaces, word joiners, byte order marks and marks
    of writing direction; "none" leaves text as it is."""
    max_length: Annotated[int, Field(ge=1), OnChange.SHAPES_CORPUS] = 256
    """Pieces per side, without EOS; longer training pairs are dropped."""
    max_length_ratio: Annotated[float, Field(ge=0), OnChange.SHAPES_CORPUS] = 0.0
    """Limit on pieces of the longer side over pieces of the shorter. 0 is no limit."""
    drop_duplicates: Annotated[bool, OnChange.SHAPES_CORPUS] = False
    """Drop all but the first of equal training pairs."""
    drop_identical: Annotated[bool, OnChange.SHAPES_CORPUS] = False
    """Drop training pairs whose source and target are the same text."""
    drop_control: Annotated[bool, OnChange.SHAPES_CORPUS] = False
    """Drop training pairs with control characters."""
    min_letters: Annotated[float, Field(ge=0, le=1), OnChange.SHAPES_CORPUS] = 0.0
    """Drop training pairs with a smaller share of letters on a side; spaces and combining marks do
    not count."""
    cache_dir: Annotated[str, OnChange.ALLOWED] = "data/cache"
    """Folder for downloads."""
    prepared_dir: Annotated[str, OnChange.ALLOWED] = "data/prepared"
    """Folder for prepared corpora, which all runs with the same data and vocabulary share."""


_SPECIAL_PIECE = re.compile("<(pad|unk|s|/s|0x[0-9A-F]{2})>")


class VocabConfig(Section):
    """The SentencePiece vocabulary learned from the training text."""

    kind: Annotated[Literal["bpe", "unigram", "word", "char"], OnChange.SHAPES_CORPUS] = "bpe"
    """Type of SentencePiece model; pieces of `word` and `char` are whole words and characters."""
    size: Annotated[int, Field(ge=5, le=10**8), OnChange.SHAPES_CORPUS] = 37_000
    """Number of pieces, including special and byte pieces; per language if not shared. `word` and
    `char` have no byte pieces and may have fewer."""
    shared: Annotated[bool, OnChange.SHAPES_CORPUS] = True
    """One vocabulary for both languages."""
    max_words: Annotated[int, Field(ge=1), OnChange.SHAPES_CORPUS] = 1_000_000
    """Number of most frequent words that SentencePiece learns from; bounds its memory."""
    path: Annotated[str | None, Field(min_length=1), OnChange.ALLOWED] = None
    """An existing SentencePiece model, whatever the ids of its special pieces, or a checkpoint or
    another folder with src.model and tgt.model, to use instead of learning one; kind, size and
    max_words are then ignored."""
    symbols: Annotated[list[str], OnChange.SHAPES_CORPUS] = []
    """Words such as "<bt>" that are always one piece and never in a translation; a model at
    `vocab.path` must have them as user-defined symbols. Not for kind `word`."""
    sampling: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    """BPE-dropout: the probability that a merge is left out, such as 0.05 in a long training, with
    new segmentations in every epoch. 0 disables it."""

    @field_validator("symbols")
    @classmethod
    def _are_symbols(cls, value: list[str]) -> list[str]:
        for symbol in value:
            is_word = symbol.isprintable() and not {" ", "\u2581"} & set(symbol)
            if not symbol or not is_word or _SPECIAL_PIECE.fullmatch(symbol):
                raise PydanticCustomError(
                    "symbol",
                    "should have words without white space, control characters and U+2581, and no"
                    " special piece such as <s> or <0x41>",
                )
        if len(set(value)) < len(value):
            raise PydanticCustomError("symbols", "should not have the same symbol twice")
        return value


class ModelConfig(Section):
    """Sizes and variants of the encoder-decoder; the defaults are the paper's base model."""

    d_model: Annotated[int, Field(ge=2, multiple_of=2), OnChange.REFUSED] = 512
    """Width of embeddings and layers; even, and divisible by n_heads."""
    d_ff: Annotated[int, Field(ge=1), OnChange.REFUSED] = 2048
    """Width inside the feed-forward layers."""
    n_heads: Annotated[int, Field(ge=1), OnChange.REFUSED] = 8
    """Attention heads per layer."""
    encoder_layers: Annotated[int, Field(ge=1, le=1000), OnChange.REFUSED] = 6
    """Layers of the encoder."""
    decoder_layers: Annotated[int, Field(ge=1, le=1000), OnChange.REFUSED] = 6
    """Layers of the decoder."""
    dropout: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.1
    """Dropout probability on each sublayer's output and on the sum of embedding and position."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    """Dropout probability on attention weights."""
    activation_dropout: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    """Dropout probability inside the feed-forward layers, after the ReLU."""
    norm: Annotated[Literal["post", "pre", "sublayer"], OnChange.REFUSED] = "post"
    """Where each sublayer f is normalised. `post`, as in the paper: LayerNorm(x + f(x)); `pre`:
    x + f(LayerNorm(x)); `sublayer`: x + LayerNorm(f(x))."""
    attention_bias: Annotated[bool, OnChange.REFUSED] = True
    """Whether the projections of attention have biases."""
    tie_embeddings: Annotated[bool, OnChange.REFUSED] = True
    """Share one weight between source embedding, target embedding and output projection."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """The optimizer, its learning rate and the loss; the defaults are the paper's."""

    muon: Annotated[bool, OnChange.REFUSED] = False
    """Muon instead of Adam for the matrices inside layers."""
    warmup_steps: Annotated[int, Field(ge=1), OnChange.REFUSED] = 4000
    """Steps until the learning rate reaches its peak."""
    lr_scale: Annotated[float, Field(gt=0), OnChange.REFUSED] = 1.0
    """Factor on the Noam learning rate."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.1
    """Probability mass of the target distribution that is spread over the whole vocabulary."""
    max_grad_norm: Annotated[float, Field(ge=0), OnChange.REFUSED] = 0.0
    """Norm to which gradients are clipped. 0 disables clipping, as in the paper."""
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(_as_tuple), OnChange.REFUSED] = (0.9, 0.98)
    """Adam's decay rates."""
    eps: Annotated[float, Field(gt=0), OnChange.REFUSED] = 1e-9
    """Adam's epsilon."""


class TrainConfig(Section):
    """The training loop: the size of a step, when to stop, what to save."""

    batch_tokens: Annotated[int, Field(ge=1), OnChange.REFUSED] = 25_000
    """Tokens per step, without padding: pairs are added until source or target has this many."""
    micro_batch_tokens: Annotated[int | Literal["auto"], OnChange.ENDS_BIT_EQUALITY] = "auto"
    """Largest forward pass, sentences times longest side, padding included: 2 or more, or "auto",
    which finds what fits into memory. A step is cut into equal parts for all GPUs or CPU threads,
    and into more parts only where this limit requires it."""
    max_steps: Annotated[int, Field(ge=0), OnChange.ALLOWED] = 100_000
    """Steps after which training ends."""
    max_epochs: Annotated[int, Field(ge=0), OnChange.ALLOWED] = 0
    """Epochs after which training ends. 0 is no limit."""
    bidirectional_epochs: Annotated[int, Field(ge=0), OnChange.REFUSED] = 0
    """Number of epochs at the start, such as a third of all, in which every second pair is
    reversed: with little text the model learns more from it. Requires `vocab.shared`, and no
    `vocab.symbols`."""
    join_pairs: Annotated[bool, OnChange.REFUSED] = False
    """Join half of the pairs, chosen anew each epoch, two by two: source to source and target to
    target, unless that is longer than `data.max_length`. With little text the model learns more
    from it. Requires no `vocab.symbols`."""
    max_minutes: Annotated[float, Field(ge=0), OnChange.ALLOWED] = 0.0
    """Minutes of training over all resumptions, including validation. 0 is no limit."""
    save_every: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 1000
    """Steps between checkpoints."""
    save_every_minutes: Annotated[float, Field(ge=0), OnChange.ALLOWED] = 0.0
    """Also save when this many minutes have passed since the last checkpoint. 0 disables it."""
    keep_last: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 5
    """Number of newest checkpoints kept, in addition to the best one."""
    log_every: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 50
    """Steps between lines of metrics.jsonl; before the first, steps 1, 2, 5, 10 ... have one."""
    tensorboard: Annotated[bool, OnChange.ALLOWED] = False
    """Also write the metrics for TensorBoard, to the folder `tensorboard` of the run."""
    max_bad_steps: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 100
    """Number of consecutive non-finite steps that ends training with an error; checked at log lines
    and at multiples of it."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], OnChange.REFUSED] = "auto"
    """Type of the matrix products; `auto` is bf16 where it is fastest, else fp16 on CUDA and fp32
    on a CPU."""
    device: Annotated[Literal["auto", "cpu", "cuda"], OnChange.ENDS_BIT_EQUALITY] = "auto"
    """Where to train; `auto` is CUDA if there is a GPU."""
    compile: Annotated[bool, OnChange.ENDS_BIT_EQUALITY] = True
    """Compile training on CUDA and capture it as a CUDA graph, which takes a while at the start; no
    effect on a CPU."""
    seed: Annotated[int, Field(ge=0, lt=2**32), OnChange.REFUSED] = 1
    """Random seed of initial weights, order of the pairs, `train.join_pairs`, dropout and
    `vocab.sampling`."""
    init_from: Annotated[str | None, Field(min_length=1), OnChange.ALLOWED] = None
    """A run or checkpoint whose weights and vocabulary a new run starts from. Its data.normalize,
    vocab.kind, vocab.size, vocab.shared, vocab.symbols and [model], dropout excepted, must be kept.
    On resume only `valid.old_text` reads it."""
    ema_decay: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    """Decay, such as 0.999, of a moving average of the weights that is validated and saved in
    addition to them. 0 disables it."""

    @field_validator("micro_batch_tokens", mode="before")
    @classmethod
    def _is_limit(cls, value: object) -> object:
        if value != "auto" and (type(value) is not int or value < 2):
            raise PydanticCustomError("limit", 'should be 2 or more, or "auto"')
        return value


class ValidConfig(Section):
    """Validation by greedy translation of `data.valid`."""

    every: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 1000
    """Steps between validations."""
    patience: Annotated[int, Field(ge=0), OnChange.ALLOWED] = 0
    """Number of consecutive validations without a better score that ends training; those within the
    warm-up do not count. 0 is no limit."""
    metric: Annotated[Literal["bleu", "chrf", "nll"], OnChange.REFUSED] = "bleu"
    """The score that decides which checkpoint is the best; perplexity (`nll`) breaks ties."""
    tokenize: Annotated[str, OnChange.REFUSED] = "auto"
    """sacreBLEU's tokenizer for BLEU, also in `evaluate`; `auto` goes by language and script."""
    old_text: Annotated[bool, OnChange.ALLOWED] = False
    """Also score the validation text of the run of `train.init_from`, from before the first step,
    to see what is forgotten; it does not decide which checkpoint is best."""


class Config(Section):
    """The configuration of a training run."""

    data: DataConfig
    vocab: VocabConfig = VocabConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    valid: ValidConfig = ValidConfig()

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if mistakes := list(self._mistakes()):
            raise ValueError("; ".join(mistakes))
        return self

    def _mistakes(self) -> Iterator[str]:
        data, vocab, model, limit = self.data, self.vocab, self.model, self.train.micro_batch_tokens
        if model.d_model % model.n_heads:
            yield f"model.d_model = {model.d_model} is not divisible by n_heads = {model.n_heads}"
        if model.tie_embeddings and not vocab.shared:
            yield "model.tie_embeddings = true requires vocab.shared = true"
        if limit != "auto" and limit <= data.max_length:
            yield (
                f"train.micro_batch_tokens = {limit} cannot hold a pair of data.max_length ="
                f" {data.max_length} pieces and EOS: raise the former or lower the latter"
            )
        if vocab.sampling and vocab.path is None and vocab.kind != "bpe":
            yield (
                f"vocab.sampling = {vocab.sampling:g} is BPE-dropout, which requires vocab.kind ="
                f" bpe, not {vocab.kind}"
            )
        yield from self._mistakes_of_epochs()
        if vocab.symbols and vocab.path is None and vocab.kind == "word":
            yield "vocab.symbols requires vocab.kind = bpe, unigram or char: words have no symbols"
        for key in ("valid", "test"):
            if getattr(getattr(data, key), "weight", 1) > 1:
                yield f"data.{key} has a weight; only data.train is repeated"
        if data.src_lang == data.tgt_lang:
            yield f"data.src_lang and data.tgt_lang are the same language, {data.src_lang}"

    def _mistakes_of_epochs(self) -> Iterator[str]:
        reverses, joins = self.train.bidirectional_epochs, self.train.join_pairs
        if reverses and not self.vocab.shared:
            yield "train.bidirectional_epochs requires vocab.shared = true"
        if self.vocab.symbols and (reverses or joins):
            key = "bidirectional_epochs" if reverses else "join_pairs"
            yield (
                f"train.{key}: vocab.symbols would be in targets or within lines, where they never"
                " are when translating; leave out one of these keys"
            )


def flat_values(config: Config) -> dict[str, object]:
    """Returns every value by its dotted key."""
    return {f"{section}.{name}": value for section, keys in config for name, value in keys}


DEFAULTS = flat_values(Config(data=DataConfig(path="(required)")))
"""The default of every key."""
