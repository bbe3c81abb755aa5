"""Messages about mistakes in a configuration, with suggestions of what was meant."""

import difflib
import re

from pydantic_core import ErrorDetails

from transformer_mt.config.keys import UNION_TAGS, Config, SplitFiles

FAMILIAR_NAMES = {
    "lr": "optim.lr_scale, a factor on the Noam learning rate",
    "learning_rate": "optim.lr_scale, a factor on the Noam learning rate",
    "warmup": "optim.warmup_steps",
    "warmup_updates": "optim.warmup_steps",
    "clip_norm": "optim.max_grad_norm",
    "grad_clip": "optim.max_grad_norm",
    "layers": "model.encoder_layers and model.decoder_layers",
    "n_layers": "model.encoder_layers and model.decoder_layers",
    "num_layers": "model.encoder_layers and model.decoder_layers",
    "heads": "model.n_heads",
    "num_heads": "model.n_heads",
    "nhead": "model.n_heads",
    "hidden_size": "model.d_model",
    "embed_dim": "model.d_model",
    "embedding_dim": "model.d_model",
    "ffn_dim": "model.d_ff",
    "ff_size": "model.d_ff",
    "dim_feedforward": "model.d_ff",
    "vocab_size": "vocab.size",
    "max_len": "data.max_length",
    "batch_size": "train.batch_tokens, which counts tokens, not sentences",
    "accumulation_steps": "train.micro_batch_tokens, which sets how a step is divided",
    "epochs": "train.max_epochs",
    "num_epochs": "train.max_epochs",
    "steps": "train.max_steps",
    "num_steps": "train.max_steps",
    "max_updates": "train.max_steps",
    "early_stopping": "valid.patience",
    "fp16": 'train.precision = "fp16"',
    "bf16": 'train.precision = "bf16"',
    "beam_size": "the option --beam-size of translate and evaluate",
    "length_penalty": "the option --length-penalty of translate and evaluate",
    "path": "data.path",
    "dataset": "the section [data]",
    "corpus": "the section [data]",
    "training": "the section [train]",
    "optimizer": "the section [optim]",
    "validation": "the section [valid]",
    "vocabulary": "the section [vocab]",
}
"""Names used by other toolkits, and their equivalents here."""
_SPLITS = "train", "valid", "test"
"""Keys of [data] that may hold a table."""
_LONGEST_VALUE = 60
"""Maximum number of characters of a value in a message."""


def describe_mistake(mistake: ErrorDetails) -> str:
    """Describes what pydantic has found: the key, its value, and what is expected or meant."""
    key, value = dotted_key(mistake["loc"]), mistake["input"]
    match mistake["type"]:
        case "extra_forbidden":
            kind = "section" if isinstance(value, dict) and "." not in key else "key"
            return f"unknown {kind} {key}{_hint(key)}"
        case "missing" if key == "data":
            return "data.path is missing: name the corpus in a section [data]"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            return str(mistake["ctx"]["error"])
        case "model_type":
            return f"{key or 'configuration'} = {_shorten(value)} should be a section, not a value"
    expected = re.sub(r"^\w+ (?=should)| after validation", "", mistake["msg"])
    return f"{key} = {_shorten(value)} {expected}"


def _shorten(value: object) -> str:
    """Formats a value for a message, which stays readable whatever the value is."""
    try:
        text = repr(value)
    except ValueError:  # Python does not format integers of more than 4300 digits
        return "a very large integer"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def dotted_key(location: tuple[int | str, ...]) -> str:
    """Joins the parts of a key; the result is one line whatever the file contains."""
    key = ""
    for part in location:
        if part in UNION_TAGS:  # pydantic's name for a type of a union, not a key
            continue
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    key = key.removeprefix(".")
    return key if key.isprintable() else repr(key)


def _hint(unknown: str) -> str:
    """Suggests a familiar name's equivalent, the same name in another section, or a similar key."""
    name = unknown.rpartition(".")[2]
    if name in FAMILIAR_NAMES:
        return f" (use {FAMILIAR_NAMES[name]})"
    sections = list(Config.model_fields)
    keys = [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    ]
    keys += [f"data.{split}.{key}" for split in _SPLITS for key in SplitFiles.model_fields]
    near = [name] if name in sections else [key for key in keys if key.endswith(f".{name}")]
    known = keys if "." in unknown else sections + keys
    near = near or difflib.get_close_matches(unknown, known, n=1, cutoff=0.6)
    suggestions = (f"the section [{key}]" if key in sections else key for key in near)
    return f" (did you mean {' or '.join(suggestions)}?)" if near else ""
