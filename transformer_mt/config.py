"""All configuration: typed, frozen sections. `config_loading` reads them from TOML.

Every key is declared here once, with its type, its allowed values, its default, and what happens
when a run is resumed with another value of it. A file in `configs/` states only what differs from
the defaults.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


class OnChange(Enum):
    """What happens when a run is resumed with another value of a key."""

    REFUSED = "refused"
    """Training stops with an error: it would no longer be the same run."""
    SHAPES_CORPUS = "shapes corpus"
    """Refused too; the value is also part of the fingerprint of the prepared corpus."""
    ENDS_BIT_EQUALITY = "ends bit-equality"
    """Training continues, but the result differs in rounding or dropout masks."""
    ALLOWED = "allowed"
    """Training continues, and every step is the same as without the change."""


INTEGER_LIMIT = 2**32
"""All integers of a configuration are smaller."""


class Section(BaseModel):
    """Base of all sections: immutable, strictly typed, no unknown keys, no NaN.

    Each field is itself a section or declares an `OnChange` in its `Annotated` type.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_large_integers(cls, value: object) -> object:
        """Refuses integers with which sizes and counts could exceed 64 bits."""
        if isinstance(value, int) and value >= INTEGER_LIMIT:
            raise PydanticCustomError("large_integer", f"should be less than {INTEGER_LIMIT}")
        return value

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a subclass with a field that lacks its declaration.

        Raises:
            TypeError: Naming the field.
        """
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if not _is_section(field) and len(_declarations(field)) != 1:
                raise TypeError(
                    f"{cls.__name__}.{name}: declare what a change on resume does, with exactly"
                    " one OnChange: Annotated[type, OnChange.REFUSED]"
                )


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def _declarations(field: FieldInfo) -> list[OnChange]:
    return [item for item in field.metadata if isinstance(item, OnChange)]


class DataConfig(Section):
    """The parallel text, and which of its pairs are trained on."""

    path: Annotated[str, Field(min_length=1), OnChange.ALLOWED]
    """A hub id, a local folder laid out like a hub repository, or a folder of SPLIT.LANG text."""
    name: Annotated[str | None, OnChange.ALLOWED] = None
    """The corpus's configuration on the hub, such as "de-en"."""
    train: Annotated[str | list[str], OnChange.SHAPES_CORPUS] = "train"
    """One split or a list of them; in a local folder also file names and patterns (see README)."""
    valid: Annotated[str, OnChange.REFUSED] = "validation"
    test: Annotated[str, OnChange.ALLOWED] = "test"
    src_lang: Annotated[str, OnChange.SHAPES_CORPUS] = "de"
    tgt_lang: Annotated[str, OnChange.SHAPES_CORPUS] = "en"
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
    """Drop training pairs in which letters are a smaller share of either side's characters, not
    counting spaces."""
    cache_dir: Annotated[str, OnChange.ALLOWED] = "data/cache"
    """Folder for downloads."""
    prepared_dir: Annotated[str, OnChange.ALLOWED] = "data/prepared"
    """Folder for prepared corpora, which all runs with the same data and vocabulary share."""

    @field_validator("train", mode="before")
    @classmethod
    def _names_of_splits(cls, value: object) -> object:
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"data.train = {value!r} should be a split's name or a list of them")
        return value


class VocabConfig(Section):
    """The SentencePiece vocabulary learned from the training text."""

    kind: Annotated[Literal["bpe", "unigram", "word", "char"], OnChange.SHAPES_CORPUS] = "bpe"
    size: Annotated[int, Field(ge=1), OnChange.SHAPES_CORPUS] = 37_000
    """Number of pieces, including special and byte pieces; per language if not shared. `word` and
    `char` have no byte pieces and may have fewer."""
    shared: Annotated[bool, OnChange.SHAPES_CORPUS] = True
    """One vocabulary for both languages."""
    max_words: Annotated[int, Field(ge=1), OnChange.SHAPES_CORPUS] = 1_000_000
    """Number of distinct words, the most frequent ones, that SentencePiece learns from; bounds its
    memory."""
    path: Annotated[str | None, OnChange.ALLOWED] = None
    """An existing SentencePiece model, or a folder with src.model and tgt.model, to use instead of
    learning one; kind, size and max_words are then ignored."""


class ModelConfig(Section):
    """Sizes and variants of the encoder-decoder; the defaults are the paper's base model."""

    d_model: Annotated[int, Field(ge=2), OnChange.REFUSED] = 512
    d_ff: Annotated[int, Field(ge=1), OnChange.REFUSED] = 2048
    n_heads: Annotated[int, Field(ge=1), OnChange.REFUSED] = 8
    encoder_layers: Annotated[int, Field(ge=1), OnChange.REFUSED] = 6
    decoder_layers: Annotated[int, Field(ge=1), OnChange.REFUSED] = 6
    dropout: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.1
    attention_dropout: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    activation_dropout: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    norm: Annotated[Literal["post", "pre", "sublayer"], OnChange.REFUSED] = "post"
    """LayerNorm(x + f(x)), x + f(LayerNorm(x)) or x + LayerNorm(f(x))."""
    attention_bias: Annotated[bool, OnChange.REFUSED] = True
    tie_embeddings: Annotated[bool, OnChange.REFUSED] = True
    """Share one weight between source embedding, target embedding and output projection."""

    @model_validator(mode="after")
    def _d_model_is_divisible(self) -> Self:
        mistakes = []
        if self.d_model % self.n_heads:
            mistakes.append(
                f"model.d_model = {self.d_model} is not divisible by model.n_heads = {self.n_heads}"
            )
        if self.d_model % 2:
            mistakes.append(
                f"model.d_model = {self.d_model} is odd; positional encodings are pairs of a sine"
                " and a cosine, so it must be even"
            )
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return self


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """Adam, its learning rate and the loss; the defaults are the paper's."""

    warmup_steps: Annotated[int, Field(ge=1), OnChange.REFUSED] = 4000
    lr_scale: Annotated[float, Field(gt=0), OnChange.REFUSED] = 1.0
    """Factor on the Noam learning rate."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.1
    max_grad_norm: Annotated[float, Field(ge=0), OnChange.REFUSED] = 0.0
    """Norm to which gradients are clipped. 0 disables clipping, as in the paper."""
    # Not strict, because a TOML array arrives as a list.
    betas: Annotated[tuple[Beta, Beta], Field(strict=False), OnChange.REFUSED] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0), OnChange.REFUSED] = 1e-9


class TrainConfig(Section):
    """The training loop: the size of a step, when to stop, what to save."""

    batch_tokens: Annotated[int, Field(ge=1), OnChange.REFUSED] = 25_000
    """Source or target tokens, without padding, at which the pairs of a step are complete."""
    micro_batch_tokens: Annotated[int, Field(ge=2), OnChange.ENDS_BIT_EQUALITY] = 8192
    """Limit on sentences times longest side, padding included, per forward pass."""
    max_steps: Annotated[int, Field(ge=0), OnChange.ALLOWED] = 100_000
    max_epochs: Annotated[int, Field(ge=0), OnChange.ALLOWED] = 0
    """0 is no limit."""
    max_minutes: Annotated[float, Field(ge=0), OnChange.ALLOWED] = 0.0
    """Minutes of training over all resumptions, including validation. 0 is no limit."""
    save_every: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 1000
    save_every_minutes: Annotated[float, Field(ge=0), OnChange.ALLOWED] = 0.0
    """Also save when this many minutes have passed since the last checkpoint. 0 disables it."""
    keep_last: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 5
    log_every: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 50
    max_bad_steps: Annotated[int, Field(ge=1), OnChange.ALLOWED] = 100
    """Number of consecutive non-finite steps that ends training with an error."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], OnChange.REFUSED] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], OnChange.ENDS_BIT_EQUALITY] = "auto"
    compile: Annotated[bool, OnChange.ENDS_BIT_EQUALITY] = True
    """Use torch.compile on CUDA, which takes a while at the start. Has no effect on a CPU, where
    compiled code is slower."""
    seed: Annotated[int, Field(ge=0, lt=2**32), OnChange.REFUSED] = 1
    init_from: Annotated[str | None, OnChange.REFUSED] = None
    """A run or checkpoint whose weights and vocabulary the run starts from."""
    ema_decay: Annotated[float, Field(ge=0, lt=1), OnChange.REFUSED] = 0.0
    """Decay, such as 0.999, of a moving average of the weights that is validated and saved in
    addition to them. 0 disables it."""


class ValidConfig(Section):
    """Validation by greedy BLEU on `data.valid`."""

    every: Annotated[int, Field(ge=1), OnChange.REFUSED] = 1000
    patience: Annotated[int, Field(ge=0), OnChange.ALLOWED] = 0
    """Number of consecutive validations without a better BLEU that ends training. 0 is no limit."""


class Config(Section):
    """The configuration of a training run."""

    data: DataConfig
    vocab: VocabConfig = VocabConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    valid: ValidConfig = ValidConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        mistakes = []
        if self.model.tie_embeddings and not self.vocab.shared:
            mistakes.append(
                "model.tie_embeddings = true requires vocab.shared = true:"
                " separate vocabularies cannot share an embedding"
            )
        if self.train.micro_batch_tokens <= self.data.max_length:
            mistakes.append(
                f"train.micro_batch_tokens = {self.train.micro_batch_tokens} cannot hold a pair of"
                f" data.max_length = {self.data.max_length} pieces and EOS:"
                " raise the former or lower the latter"
            )
        if self.data.src_lang == self.data.tgt_lang:
            mistakes.append(
                f"data.src_lang and data.tgt_lang are the same language, {self.data.src_lang}"
            )
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return self


def flat_values(config: Config) -> dict[str, object]:
    """Returns every value by its dotted key."""
    return {key: value for key, value, _ in _declared_keys(config)}


def changed_keys(old: Config, new: Config) -> list[str]:
    """Lists the keys that differ and that a resumed run must not change."""
    return _changed(old, new, (OnChange.REFUSED, OnChange.SHAPES_CORPUS))


def keys_that_end_bit_equality(old: Config, new: Config) -> list[str]:
    """Lists the keys that differ, may differ, and make a resumed run differ in rounding."""
    return _changed(old, new, (OnChange.ENDS_BIT_EQUALITY,))


def values_that_shape_corpus(section: Section) -> dict[str, object]:
    """Returns the values of a section that the prepared corpus depends on, by name."""
    return {
        name: getattr(section, name)
        for name, field in type(section).model_fields.items()
        if OnChange.SHAPES_CORPUS in field.metadata
    }


def _declared_keys(config: Config) -> Iterator[tuple[str, object, OnChange]]:
    """Lists dotted keys with their values and declarations."""
    for section_name, section in config:
        for name, field in type(section).model_fields.items():
            [on_change] = _declarations(field)
            yield f"{section_name}.{name}", getattr(section, name), on_change


def _changed(old: Config, new: Config, kinds: tuple[OnChange, ...]) -> list[str]:
    old_values = flat_values(old)
    return sorted(
        key
        for key, value, on_change in _declared_keys(new)
        if on_change in kinds and value != old_values[key]
    )
