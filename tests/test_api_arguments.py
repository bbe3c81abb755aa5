"""What the functions of the Python API accept, and how they refuse the rest."""

import pytest
import torch
from conftest import refuses

import transformer_mt
from transformer_mt.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def model(copy_run) -> transformer_mt.TranslationModel:
    return transformer_mt.load(copy_run)


class Table:
    """Like those of pandas, whose items are the names of their columns; here as many as rows."""

    ndim = 2

    def __len__(self) -> int:
        return 1

    def __iter__(self):
        return iter(["German"])


def test_arguments(copy_run, model, monkeypatch):
    """`max_length` and `split` decide where lines are split; mistakes are our own errors."""
    words = " ".join(["abc de."] * 3)  # more than 99.9% of the training lines have
    for split, parts in (("auto", 3), ("long", 2), ("never", 1)):
        [[best]] = transformer_mt.load(copy_run, split=split).n_best([words], n=1)
        assert best.parts == parts
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        assert transformer_mt.load(copy_run, max_length=5, device="cpu").splitter.max_length == 5
    load, run = transformer_mt.load, copy_run
    ensemble = load(run, str(run))
    for error, message, call in (
        (CheckpointError, "nowhere: no such run", lambda: load("nowhere")),
        (ConfigError, "device cuda:0: choose auto, cpu, cuda", lambda: load(run, device="cuda:0")),
        (TypeError, r"device device\(.*: pass a", lambda: load(run, device=torch.device("cpu"))),
        (ConfigError, "precision int8: choose fp32, bf16", lambda: load(run, precision="int8")),
        (ConfigError, "split no: choose auto, long, never", lambda: load(run, split="no")),
        (ConfigError, "maximum length 0", lambda: load(run, max_length=0)),
        (ConfigError, "n = 3: choose 1 .* at most", lambda: model.n_best(["a"], n=3, beam_size=2)),
        (ConfigError, "n = 0: choose 1 or more", lambda: model.n_best(["a"], n=0)),
        (ConfigError, "beam size 200", lambda: model.translate(["a"], beam_size=200)),
        (ConfigError, "top-k 0: choose 1 or more", lambda: model.sample(["a"], top_k=0)),
        (ConfigError, "seed -1: choose 0 to 4294967295", lambda: model.sample(["a"], seed=-1)),
        (ConfigError, "single model", lambda: ensemble.attention("abc")),
        # The characters of a string would be translated one by one.
        (TypeError, r"pass a list of lines, such as \[line\]", lambda: model.translate("abc")),
        (TypeError, "pass a list of lines", lambda: model.n_best("abc", n=1)),
        (TypeError, "pass a list of lines", lambda: model.sample("abc")),
        (TypeError, "pass a list of lines", lambda: model.score("a", ["a"])),
        (TypeError, "pass a list of lines", lambda: model.score(["a"], "a")),
        (TypeError, "not a bytes", lambda: model.translate(b"")),
        (TypeError, "not a dict", lambda: model.translate({"a": "b"})),
        (TypeError, "not a Table", lambda: model.translate(Table())),
        (TypeError, "item 1 of the lines is NoneType", lambda: model.translate(["a", None])),
        (TypeError, "as a str, not NoneType", lambda: model.encoder_output(None)),
        (TypeError, "as a str, not list", lambda: model.attention(["abc"])),
        (TypeError, "as a str, not list", lambda: model.logits("abc", ["abc"])),
    ):
        refuses(error, message, call)
