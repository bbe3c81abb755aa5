"""Loading and learning leave the settings of other libraries and of the process unchanged."""

import io
import socket
from collections import Counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencepiece
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    enable_progress_bars,
    progress_bar_states,
)
from sacrebleu.dataset import DATASETS

from transformer_mt.config.keys import DataConfig, VocabConfig
from transformer_mt.errors import DataError
from transformer_mt.text import hub
from transformer_mt.text.corpus import load_split
from transformer_mt.text.test_sets import load_test_set
from transformer_mt.text.vocabulary import train_vocabulary

NOTHING_LISTENS = "http://127.0.0.1:9"
WORDS = Counter({"ab": 9, "cd": 8, "ef": 7})


def library_settings() -> dict[str, object]:
    """Reads the process-wide settings that loading a corpus may change."""
    return {
        "datasets offline": datasets.config.HF_HUB_OFFLINE,
        "hub offline": constants.HF_HUB_OFFLINE,
        "datasets without bars": datasets.are_progress_bars_disabled(),
        "hub bars": dict(progress_bar_states),
    }


@pytest.fixture
def online(monkeypatch):
    """Makes the hub unreachable, whatever the environment says."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOTHING_LISTENS)


@pytest.fixture
def during(monkeypatch) -> list[dict[str, object]]:
    """Records the settings at each call of `datasets.load_dataset`."""
    records, load = [], datasets.load_dataset

    def recording(*arguments, **options):
        records.append(library_settings())
        assert are_progress_bars_disabled() == datasets.are_progress_bars_disabled()
        return load(*arguments, **options)

    monkeypatch.setattr(datasets, "load_dataset", recording)
    return records


def test_load_split_restores_the_progress_bars(tmp_path, online, during):
    """They are hidden while a local corpus is loaded. Sabotage: do not enable them again."""
    enable_progress_bars("a.group.of.another.program")
    before = library_settings()
    (tmp_path / "corpus").mkdir()
    table = pa.table({"de": ["eins"], "en": ["one"]})
    pq.write_table(table, tmp_path / "corpus" / "train.parquet")
    config = DataConfig(path=str(tmp_path / "corpus"), cache_dir=str(tmp_path / "cache"))
    assert load_split(config, "train").src == ["eins"]
    [settings] = during
    assert settings["datasets without bars"] and settings["hub bars"] == {"_global": False}
    assert not settings["datasets offline"] and not settings["hub offline"]
    assert library_settings() == before


def test_load_split_shows_progress_bars_where_ours_are_shown(tmp_path, online, during, monkeypatch):
    """A terminal with messages on it gets the bars of downloads too."""
    monkeypatch.setattr(hub, "shows_bars", lambda: True)
    config = DataConfig(path="wmt/wmt16", cache_dir=str(tmp_path))
    with pytest.raises(DataError):
        load_split(config, "train")
    assert not during[0]["datasets without bars"]


def test_load_split_restores_offline_mode(tmp_path, online, during):
    """After an error too. Sabotage: set the flags without a `finally`."""
    before = library_settings()
    config = DataConfig(path="wmt/wmt16", cache_dir=str(tmp_path))
    with pytest.raises(DataError, match=f"{NOTHING_LISTENS} is unreachable"):
        load_split(config, "train")
    [settings] = during
    assert settings["datasets offline"] and settings["hub offline"]
    assert library_settings() == before


@pytest.mark.parametrize("before", [None, 33.0])
@pytest.mark.parametrize("error", [None, OSError("no network")])
def test_load_test_set_restores_the_socket_timeout(monkeypatch, before, error):
    """Downloads have a timeout, other sockets of the process do not get it."""
    during = []

    def read(pair):
        during.append(socket.getdefaulttimeout())
        if error:
            raise error
        return ["one line"]

    dataset = DATASETS["wmt16"]
    monkeypatch.setattr(dataset, "source", read)
    monkeypatch.setattr(dataset, "references", lambda pair: [[line] for line in read(pair)])
    original = socket.getdefaulttimeout()
    socket.setdefaulttimeout(before)
    try:
        if error:
            with pytest.raises(DataError, match="cannot download it"):
                load_test_set(DataConfig(path="none"), test_set="wmt16")
        else:
            assert len(load_test_set(DataConfig(path="none"), test_set="wmt16")) == 1
        assert socket.getdefaulttimeout() == before
    finally:
        socket.setdefaulttimeout(original)
    assert set(during) == {10.0}


def learn_elsewhere() -> None:
    """Learns a vocabulary as another program would, with SentencePiece's own settings."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab cd ef"] * 9),
        model_writer=io.BytesIO(),
        model_type="word",
        vocab_size=9,
        hard_vocab_limit=False,
    )


@pytest.mark.parametrize("size", [300, 9])
def test_train_vocabulary_restores_the_log_level(capfd, size):
    """It is silent, with or without an error; SentencePiece's messages are shown afterwards.

    Sabotage: pass `minloglevel=2` instead, which stays in force.
    """
    sentencepiece.set_min_log_level(0)
    if size == 9:
        with pytest.raises(DataError, match=r"vocab.size = 9"):
            train_vocabulary([WORDS], VocabConfig(size=size))
    else:
        train_vocabulary([WORDS], VocabConfig(kind="word", size=size))
    assert capfd.readouterr() == ("", "")
    learn_elsewhere()
    assert "trainer_interface" in capfd.readouterr().err
    sentencepiece.set_min_log_level(2)  # keeps the output of later tests short
