"""The other sides of train.py: loops as tutorials write them, and JoeyNMT."""

import math
import re
import statistics
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.config.keys import Config
from transformer_mt.model.transformer import sinusoid
from transformer_mt.text.batching import Indices
from transformer_mt.text.corpus import load_split
from transformer_mt.text.encoded_pairs import EncodedPairs
from transformer_mt.text.prepared import PreparedCorpus
from transformer_mt.text.vocabulary import PAD_ID

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
        causal = nn.Transformer.generate_square_subsequent_mask(
            tgt.size(1), device=tgt.device, dtype=torch.bool
        )
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            src_key_padding_mask=src == PAD_ID,
            tgt_key_padding_mask=tgt == PAD_ID,
            memory_key_padding_mask=src == PAD_ID,
            tgt_is_causal=True,
        )
        return self.out(hidden)


def tutorial(
    config: Config,
    pairs: EncodedPairs,
    vocab: int,
    batches: Callable[[int], Indices],
    device: torch.device,
    length: int = 0,
) -> Step:
    """Gives a step of the plain loop in fp32, padded to a fixed length if one is given."""
    model = Tutorial(config, vocab).to(device).train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)

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


_JOEY = """
name: side
joeynmt_version: 2.3.0
model_dir: {folder}/model
use_cuda: false
fp16: false
random_seed: 1
data:
    train: {folder}/train
    dev: {folder}/valid
    dataset_type: plain
    src: &side
        lang: de
        max_length: 256
        lowercase: false
        level: bpe
        voc_limit: {vocab}
        voc_min_freq: 1
        voc_file: {folder}/vocab.txt
        tokenizer_type: sentencepiece
        tokenizer_cfg:
            model_file: {folder}/vocab.model
            model_type: bpe
            character_coverage: 1.0
    trg:
        <<: *side
        lang: en
training:
    random_seed: 1
    optimizer: adam
    normalization: tokens
    adam_betas: [0.9, 0.98]
    learning_rate: 0.0005
    scheduling: warmupinversesquareroot
    learning_rate_warmup: 1000
    batch_size: {tokens}
    batch_type: token
    label_smoothing: {smoothing}
    epochs: 1
    updates: {updates}
    validation_freq: {often}00000
    logging_freq: {often}
    overwrite: true
    shuffle: true
testing:
    beam_size: 1
model:
    initializer: xavier_uniform
    embed_initializer: xavier_uniform
    tied_embeddings: true
    tied_softmax: true
    encoder: &half
        type: transformer
        num_layers: {layers}
        num_heads: {heads}
        embeddings:
            embedding_dim: {width}
            scale: true
            dropout: {dropout}
        hidden_size: {width}
        ff_size: {inner}
        dropout: {dropout}
        layer_norm: {norm}
    decoder: *half
"""


class JoeyNMT:
    """JoeyNMT 2.3.0 in an environment of its own, on the same text, pieces and sizes.

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

    def rate(self, config: Config, prepared: PreparedCorpus, updates: int) -> float:
        """Trains for some updates; gives the median of the target tokens/s that it logs."""
        folder = self.folder / "side"
        folder.mkdir(exist_ok=True)
        for split, name in (("train", config.data.train), ("valid", config.data.valid)):
            raw = load_split(config.data, str(name))
            for lines, language in ((raw.src, "de"), (raw.tgt, "en")):
                text = "\n".join(lines) + "\n"
                (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
        (folder / "vocab.model").write_bytes(prepared.vocab.src_model)
        specials = ["<unk>", "<pad>", "<s>", "</s>"]
        pieces = prepared.vocab.tgt_pieces(range(len(specials), prepared.vocab.tgt_size))
        (folder / "vocab.txt").write_text("\n".join(specials + pieces) + "\n", encoding="utf-8")
        sizes = config.model
        text = _JOEY.format(
            folder=folder,
            vocab=prepared.vocab.tgt_size,
            tokens=config.train.batch_tokens,
            smoothing=config.optim.label_smoothing,
            updates=updates,
            often=max(updates // 6, 1),
            layers=sizes.encoder_layers,
            heads=sizes.n_heads,
            width=sizes.d_model,
            inner=sizes.d_ff,
            dropout=sizes.dropout,
            norm=sizes.norm,
        )
        (folder / "side.yaml").write_text(text, encoding="utf-8")
        command = [self.python, "-m", "joeynmt", "train", folder / "side.yaml", "--skip-test"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        found = re.findall(r"Tokens per Sec: +(\d+)", done.stdout + done.stderr)
        assert found, done.stderr[-2000:]
        return statistics.median(map(float, found[1:] or found))  # the first warms up
