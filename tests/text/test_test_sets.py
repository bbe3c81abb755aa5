"""Test sets of sacreBLEU."""

import socket

import pytest
from sacrebleu.dataset import DATASETS

from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import DataError
from transformer_mt.text.test_sets import load_test_set


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
