"""All configuration: typed, frozen sections, loaded strictly from TOML.

Each default stands here and nowhere else; a file in `configs/` states only what differs.
"""

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from transformer_mt.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]


class Section(BaseModel):
    """What all sections share: immutable, strictly typed, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    """Where the parallel text comes from, and which pairs of it are trained on."""

    path: str = Field(min_length=1)
    """A hub id, a local folder laid out like a hub repository, or a folder of SPLIT.LANG text."""
    name: str | None = None
    """The corpus's configuration on the hub, such as "de-en"."""
    train: str | list[str] = "train"
    """One split, or several; in a local folder also names or patterns of files, see the README."""
    valid: str = "validation"
    test: str = "test"
    src_lang: str = "de"
    tgt_lang: str = "en"
    max_length: int = Field(default=256, ge=1)
    """Pieces a side, end marks not counted; longer training pairs are dropped."""
    max_length_ratio: float = Field(default=0.0, ge=0.0)
    """Longer side over shorter side, in pieces; pairs beyond it are dropped. 0 is no limit."""
    drop_duplicates: bool = False
    """Of equal training pairs only the first is kept."""
    drop_identical: bool = False
    """Training pairs whose sides are the same text are dropped."""
    drop_control: bool = False
    """Training pairs with control characters are dropped."""
    min_letters: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of letters among the characters of either side, spaces apart, below which a training
    pair is dropped."""
    cache_dir: str = "data/cache"
    """Where downloads lie."""
    prepared_dir: str = "data/prepared"
    """Where training text lies as ids, for all runs that want the same."""


class VocabConfig(Section):
    """The SentencePiece vocabulary learned from the training text."""

    kind: Literal["bpe", "unigram", "word", "char"] = "bpe"
    size: int = Field(default=37_000, ge=1)
    """Pieces, the special and byte pieces included; of each language when not shared. Words and
    characters, which have no byte pieces, may be fewer."""
    shared: bool = True
    max_words: int = Field(default=1_000_000, ge=1)
    """SentencePiece learns from so many distinct words at most, the most frequent, to bound its
    memory."""
    path: str | None = None
    """A SentencePiece model made elsewhere, or a folder with src.model and tgt.model; then kind,
    size and max_words mean nothing."""


class ModelConfig(Section):
    """Sizes and variants of the encoder-decoder; the defaults are the paper's base model."""

    d_model: int = Field(default=512, ge=2)
    d_ff: int = Field(default=2048, ge=1)
    n_heads: int = Field(default=8, ge=1)
    encoder_layers: int = Field(default=6, ge=1)
    decoder_layers: int = Field(default=6, ge=1)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    norm: Literal["post", "pre", "sublayer"] = "post"
    """LayerNorm(x + f(x)), x + f(LayerNorm(x)) or x + LayerNorm(f(x))."""
    attention_bias: bool = True
    tie_embeddings: bool = True
    """One matrix for source embedding, target embedding and output projection."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(
                f"model.d_model = {self.d_model} is not divisible by model.n_heads = {self.n_heads}"
            )
        if self.d_model % 2:
            raise ValueError(
                f"model.d_model = {self.d_model} is odd: sines and cosines of the positions"
                " come in pairs, so choose an even width"
            )
        return self


class OptimConfig(Section):
    """Adam, its rate and its loss; the defaults are the paper's."""

    warmup_steps: int = Field(default=4000, ge=1)
    lr_scale: float = Field(default=1.0, gt=0.0)
    """Multiplies the Noam rate."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    max_grad_norm: float = Field(default=0.0, ge=0.0)
    """Gradients are scaled down to this norm. 0 leaves them alone, as the paper does."""
    # A TOML array arrives as a list, which strict mode would not take for a tuple.
    betas: tuple[float, float] = Field(default=(0.9, 0.98), strict=False)
    eps: float = Field(default=1e-9, gt=0.0)

    @model_validator(mode="after")
    def _betas_below_one(self) -> Self:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"optim.betas = {list(self.betas)} must lie in [0, 1)")
        return self


class TrainConfig(Section):
    """The loop: how much a step holds, when it stops, what it saves."""

    batch_tokens: int = Field(default=25_000, ge=1)
    """A step collects pairs until its real source or target tokens reach this."""
    micro_batch_tokens: int = Field(default=8192, ge=2)
    """Padded positions, sentences times longest side, that go through the model at once."""
    max_steps: int = Field(default=100_000, ge=0)
    max_epochs: int = Field(default=0, ge=0)
    """0 is no limit."""
    max_minutes: float = Field(default=0.0, ge=0.0)
    """Minutes of training over all resumptions, validation included. 0 is no limit."""
    save_every: int = Field(default=1000, ge=1)
    save_every_minutes: float = Field(default=0.0, ge=0.0)
    """Minutes after which a checkpoint is saved in any case. 0 is never."""
    keep_last: int = Field(default=5, ge=1)
    log_every: int = Field(default=50, ge=1)
    max_bad_steps: int = Field(default=100, ge=1)
    """So many non-finite steps in a row stop the run."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compile: bool = True
    """On CUDA, the model's operations are fused by torch.compile, which takes a while at the start.
    CPUs are faster without."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    init_from: str | None = None
    """A run or checkpoint whose weights and vocabulary this run begins with."""
    ema_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of a moving average of the weights, kept, validated and saved beside them, such as
    0.999. 0 keeps none."""


class ValidConfig(Section):
    """Validation by greedy BLEU on `data.valid`."""

    every: int = Field(default=1000, ge=1)
    patience: int = Field(default=0, ge=0)
    """Validations without a better BLEU after which training stops. 0 never stops it."""


class Config(Section):
    """One training run, whole."""

    data: DataConfig
    vocab: VocabConfig = VocabConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    valid: ValidConfig = ValidConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.tie_embeddings and not self.vocab.shared:
            raise ValueError(
                "model.tie_embeddings = true needs vocab.shared = true:"
                " separate vocabularies cannot share a matrix"
            )
        if self.train.micro_batch_tokens <= self.data.max_length:
            raise ValueError(
                f"train.micro_batch_tokens = {self.train.micro_batch_tokens} cannot hold a pair of"
                f" data.max_length = {self.data.max_length} pieces and its end mark:"
                " raise the one or lower the other"
            )
        if self.data.src_lang == self.data.tgt_lang:
            raise ValueError("data.src_lang and data.tgt_lang name the same language")
        return self


MAY_CHANGE = frozenset(
    {
        "data.cache_dir",
        "data.prepared_dir",
        "train.max_steps",
        "train.max_epochs",
        "train.max_minutes",
        "train.save_every",
        "train.save_every_minutes",
        "train.keep_last",
        "train.log_every",
        "train.max_bad_steps",
        "valid.patience",
    }
)
"""Keys a resumed run may change: how long it trains and how often it logs or saves, not what."""


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a TOML file, applies `key=value` overrides and checks the whole.

    Args:
        path: The TOML file.
        overrides: Items such as `optim.warmup_steps=8000`, later ones winning.

    Raises:
        ConfigError: Naming file and line, or key, and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _set(values, override)
    return parse_config(values, str(path))


def parse_config(values: Mapping[str, Any], origin: str) -> Config:
    """Checks nested values against the sections.

    Args:
        values: Section name to key to value.
        origin: What to call their source in an error.

    Raises:
        ConfigError: Naming the first key that is wrong.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {_explain(error)}") from None


def flat_values(config: Config) -> dict[str, object]:
    """Gives every value under its dotted key."""
    return dict(_flatten(config.model_dump()))


def changed_keys(old: Config, new: Config) -> list[str]:
    """Names the keys that differ and must not, for a run that would be resumed."""
    before, after = flat_values(old), flat_values(new)
    return sorted(key for key in before if before[key] != after[key] and key not in MAY_CHANGE)


def _set(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise ConfigError(f"--set {override}: write key=value, such as optim.warmup_steps=8000")
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    values[last] = _parse_value(text)


def _parse_value(text: str) -> object:
    """Reads a TOML value; what is none (a bare word, a path) is the string it looks like."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # "1\nother = 2" would be valid TOML of two keys.
    return document["value"] if len(document) == 1 else text


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, _known_keys(), n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown key {key}{hint}"
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    message = first["msg"].replace("Input should", "should")
    return f"{key} = {first['input']!r} {message}"


def _known_keys() -> list[str]:
    keys: list[str] = []
    for name, field in Config.model_fields.items():
        section = field.annotation
        keys.append(name)
        if isinstance(section, type) and issubclass(section, Section):
            keys += [f"{name}.{key}" for key in section.model_fields]
    return keys


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
