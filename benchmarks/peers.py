"""The other sides of train.py and quality.py: loops as tutorials write them, and JoeyNMT."""

import json
import math
import re
import statistics
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.config.keys import Config
from transformer_mt.model.transformer import sinusoid
from transformer_mt.text.batching import EncodedPairs, Indices
from transformer_mt.text.corpus import load_split
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary

Step = Callable[[int], tuple[int, int]]
"""Takes step i; gives its source and target tokens."""


class Tutorial(nn.Module):
    """What most tutorials build around `nn.Transformer`."""

    def __init__(self, config: Config, vocab: int) -> None:
        """Takes the sizes of a configuration."""
        super().__init__()
        sizes = config.model
        self.embedding = nn.Embedding(vocab, sizes.d_model)
        self.register_buffer("positions", sinusoid(torch.arange(512), sizes.d_model))
        self.dropout = nn.Dropout(sizes.dropout)
        self.transformer = nn.Transformer(
            sizes.d_model,
            sizes.n_heads,
            sizes.encoder_layers,
            sizes.decoder_layers,
            sizes.d_ff,
            sizes.dropout,
            batch_first=True,
        )
        self.out = nn.Linear(sizes.d_model, vocab)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeds ids, (B, L) to (B, L, D)."""
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.size(1)])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Computes logits, (B, T, V)."""
        return self.out(self.decode(tgt, self.encode(src), src))

    def encode(self, src: Tensor) -> Tensor:
        """Encodes ids, (B, L) to (B, L, D)."""
        return self.transformer.encoder(self.embed(src), src_key_padding_mask=src == PAD_ID)

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """Decodes given tokens with an encoded source, (B, T) to (B, T, D)."""
        causal = nn.Transformer.generate_square_subsequent_mask(
            tgt.size(1), device=tgt.device, dtype=torch.bool
        )
        return self.transformer.decoder(
            self.embed(tgt),
            memory,
            tgt_mask=causal,
            tgt_key_padding_mask=tgt == PAD_ID,
            memory_key_padding_mask=src == PAD_ID,
            tgt_is_causal=True,
        )

    @torch.no_grad()
    def translate(self, src: Tensor, steps: int) -> Tensor:
        """Decodes greedily without a cache, (B, L) to (B, T); sentences are padded after EOS."""
        memory = self.encode(src)
        tgt = src.new_full((len(src), 1), BOS_ID)
        ended = src.new_zeros(len(src), dtype=torch.bool)
        for _ in range(steps):
            last = self.out(self.decode(tgt, memory, src)[:, -1])
            token = last.argmax(-1).masked_fill(ended, PAD_ID)
            tgt = torch.cat((tgt, token[:, None]), dim=1)
            ended |= token == EOS_ID
            if ended.all():
                break
        return tgt[:, 1:]


def tutorial(
    model: Tutorial, pairs: EncodedPairs, batches: Callable[[int], Indices], length: int = 0
) -> Step:
    """Gives a step of the plain loop in fp32, padded to a fixed length if one is given."""
    device = model.positions.device
    adam = torch.optim.Adam(model.train().parameters(), lr=1e-4)

    def step(i: int) -> tuple[int, int]:
        batch = pairs.batch(batches(i))
        parts = batch.src, batch.tgt_in, batch.tgt_out
        if length:
            parts = tuple(F.pad(part, (0, length - part.size(1)), value=PAD_ID) for part in parts)
        src, tgt_in, tgt_out = (part.to(device) for part in parts)
        logits = model(src, tgt_in)
        adam.zero_grad()
        loss = F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=PAD_ID)
        loss.backward()
        adam.step()
        float(loss.detach())  # waits for the device, as a loop does that prints it
        return batch.src_tokens, batch.tgt_tokens

    return step


PUBLISHED = {
    "optimizer": {
        "adam_betas": [0.9, 0.999],
        "learning_rate": 0.0003,
        "scheduling": "exponential",
        "decrease_factor": 1.0,
    },
    "label_smoothing": 0.1,
    "batch_tokens": 4096,
    "layers": 6,
    "heads": 4,
    "width": 256,
    "inner": 1024,
    "dropout": 0.3,
    "embedding_dropout": 0.0,
    "norm": "pre",
}
"""JoeyNMT's recipe for a small corpus, `transformer_iwslt14_deen_bpe.yaml`.

The normalisation, which it leaves out, was pre-norm by default when it was published. The rate is
constant: its plateau schedule, which acts after five validations without progress, cannot be built
with the PyTorch of today.
"""


def same_recipe(config: Config) -> dict[str, Any]:
    """Gives our sizes and rate to JoeyNMT, as far as it has them."""
    sizes, optim = config.model, config.optim
    peak = optim.lr_scale * sizes.d_model**-0.5 * optim.warmup_steps**-0.5
    return {
        "optimizer": {
            "adam_betas": [0.9, 0.98],
            "learning_rate": peak,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": optim.warmup_steps,
        },
        "label_smoothing": optim.label_smoothing,
        "batch_tokens": config.train.batch_tokens,
        "layers": sizes.encoder_layers,
        "heads": sizes.n_heads,
        "width": sizes.d_model,
        "inner": sizes.d_ff,
        "dropout": sizes.dropout,
        "embedding_dropout": sizes.dropout,
        "norm": sizes.norm,
    }


@dataclass(frozen=True)
class Interval:
    """When JoeyNMT logs, validates and ends, in updates."""

    logging: int
    validation: int
    end: int | None = None


class JoeyNMT:
    """JoeyNMT 2.3.0 in an environment of its own, on the same text and pieces.

    Args:
        folder: Where the environment is, or is made.
    """

    def __init__(self, folder: Path) -> None:
        """Makes the environment, once."""
        self.folder = folder.resolve()
        self.python = self.folder / "bin" / "python"
        if not (self.folder / "installed").exists():
            venv.create(self.folder, with_pip=True)
            # It needs importlib_metadata without saying so, and sentencepiece before 0.2.1.
            extra = ["joeynmt==2.3.0", "importlib_metadata", "sentencepiece==0.2.0"]
            for packages in ([f"torch=={torch.__version__.split('+')[0]}"], extra):
                command = [self.python, "-m", "pip", "install", "-q", *packages]
                subprocess.run(command, check=True)
            (self.folder / "installed").touch()

    def write_text(self, config: Config, vocab: Vocabulary, folder: Path) -> dict[str, Any]:
        """Writes text and pieces into a folder; gives the part of a configuration on them."""
        folder.mkdir(parents=True, exist_ok=True)
        for split, source in (("train", config.data.train), ("valid", config.data.valid)):
            raw = load_split(config.data, source)
            for lines, language in ((raw.src, "de"), (raw.tgt, "en")):
                text = "\n".join(lines) + "\n"
                (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
        (folder / "vocab.model").write_bytes(vocab.src_model)
        specials = ["<unk>", "<pad>", "<s>", "</s>"]
        pieces = vocab.tgt.pieces(range(len(specials), vocab.tgt.size))
        (folder / "vocab.txt").write_text("\n".join(specials + pieces) + "\n", encoding="utf-8")
        side = {
            "max_length": 256,
            "lowercase": False,
            "level": "bpe",
            "voc_limit": vocab.tgt.size,
            "voc_min_freq": 1,
            "voc_file": f"{folder}/vocab.txt",
            "tokenizer_type": "sentencepiece",
            "tokenizer_cfg": {
                "model_file": f"{folder}/vocab.model",
                "model_type": config.vocab.kind,
                "character_coverage": 1.0,
            },
        }
        return {
            "train": f"{folder}/train",
            "dev": f"{folder}/valid",
            "dataset_type": "plain",
            "src": {"lang": "de", **side},
            "trg": {"lang": "en", **side},
        }

    def write_config(
        self, data: dict[str, Any], recipe: dict[str, Any], interval: Interval, folder: Path
    ) -> Path:
        """Writes a configuration; its model goes to `model` in the folder."""
        half = {
            "type": "transformer",
            "num_layers": recipe["layers"],
            "num_heads": recipe["heads"],
            "embeddings": {
                "embedding_dim": recipe["width"],
                "scale": True,
                "dropout": recipe["embedding_dropout"],
            },
            "hidden_size": recipe["width"],
            "ff_size": recipe["inner"],
            "dropout": recipe["dropout"],
            "layer_norm": recipe["norm"],
        }
        ends = {"updates": interval.end} if interval.end else {"epochs": 1000}
        values = {
            "name": "side",
            "joeynmt_version": "2.3.0",
            "model_dir": f"{folder}/model",
            "use_cuda": False,
            "fp16": False,
            "random_seed": 1,
            "data": data,
            "training": {
                "optimizer": "adam",
                "normalization": "tokens",
                **recipe["optimizer"],
                "label_smoothing": recipe["label_smoothing"],
                "batch_size": recipe["batch_tokens"],
                "batch_type": "token",
                **ends,
                "validation_freq": interval.validation,
                "logging_freq": interval.logging,
                "early_stopping_metric": "bleu",
                "overwrite": True,
                "shuffle": True,
            },
            "testing": {"beam_size": 1, "eval_metrics": ["bleu"]},
            "model": {
                "initializer": "xavier_uniform",
                "embed_initializer": "xavier_uniform",
                "tied_embeddings": True,
                "tied_softmax": True,
                "encoder": half,
                "decoder": half,
            },
        }
        path = folder / "side.yaml"
        path.write_text(json.dumps(values, indent=1), encoding="utf-8")  # JSON is YAML
        return path

    def run(self, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs the program to its end."""
        command = [self.python, "-m", "joeynmt", *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=True, **options
        )

    def rate(self, config: Config, prepared: PreparedCorpus, updates: int) -> float:
        """Trains for some updates; gives the median of the target tokens/s that it logs."""
        folder = self.folder / "side"
        data = self.write_text(config, prepared.vocab, folder)
        often = max(updates // 6, 1)
        interval = Interval(often, often * 100_000, updates)
        return self.tokens_per_second(
            self.write_config(data, same_recipe(config), interval, folder)
        )

    def tokens_per_second(self, path: Path) -> float:
        """Trains as configured; gives the median of the target tokens/s that it logs."""
        done = self.run("train", path, "--skip-test")
        found = re.findall(r"Tokens per Sec: +(\d+)", done.stdout + done.stderr)
        assert found, done.stderr[-2000:]
        return statistics.median(map(float, found[1:] or found))  # the first warms up
