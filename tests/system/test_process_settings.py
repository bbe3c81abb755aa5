"""Settings of the process: standard streams that are closed or lost, memory, and threads."""

import io
import logging
import os
import subprocess

import pytest
from conftest import command

from transformer_mt.system.process_settings import allow_any_text, configure_libraries


@pytest.mark.parametrize(
    ("words", "closed", "code", "message"),
    [
        (("config", "optim.eps"), ">&-", 2, "error: output: Bad file descriptor\n"),
        (("config", "optim.eps"), "<&- >&- 2>&-", 2, ""),
        (("translate", "RUN", "-q"), "<&-", 0, ""),
    ],
)
def test_a_closed_stream(untrained_run, words, closed, code, message):
    """A closed stdout is an error of one line; a closed stdin is empty."""
    line = " ".join(command(*words)).replace("RUN", str(untrained_run))
    done = subprocess.run(["bash", "-c", f"{line} {closed}"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", message)


def test_any_file_name_is_printed(copy_run, tmp_path, monkeypatch):
    """Sabotage: leave stdout as Python opens it."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    name = f"{tmp_path}/caf\udce9 é.svg"
    words = command("plot", "training", copy_run, "-o", name)
    done = subprocess.run(words, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, os.fsencode(name) + b"\n", b"")


@pytest.mark.parametrize(
    ("encoding", "errors", "expected"),
    [
        ("utf-8", "strict", b"caf\xe9 \xc3\xa9"),
        ("ascii", "surrogateescape", b"caf\xe9 \xc3\xa9"),
        ("ascii", "replace", b"caf? ?"),
    ],
)
def test_the_encoding_of_stdout(monkeypatch, encoding, errors, expected):
    """UTF-8 in any locale, or as the user wants it."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    monkeypatch.setattr("sys.stdout", stdout)
    allow_any_text()
    stdout.write("caf\udce9 é")
    stdout.flush()
    assert stdout.buffer.getvalue() == expected


@pytest.mark.parametrize(
    ("name", "value", "variable", "expected"),
    [
        ("PATH", "", "GOMP_SPINCOUNT", "1000"),
        ("GOMP_SPINCOUNT", "7", "GOMP_SPINCOUNT", "7"),
        ("OMP_WAIT_POLICY", "PASSIVE", "GOMP_SPINCOUNT", None),
        ("PATH", "", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256"),
        ("LRU_CACHE_CAPACITY", "9", "LRU_CACHE_CAPACITY", "9"),
        ("PATH", "", "TORCH_CPP_LOG_LEVEL", "FATAL"),
    ],
)
def test_variables_of_the_user_are_kept(monkeypatch, name, value, variable, expected):
    monkeypatch.setattr(os, "environ", {name: value})
    configure_libraries()
    assert os.environ.get(variable) == expected
    assert logging.getLogger("matplotlib").level == logging.ERROR


def test_variables_are_set_before_torch_is_imported():
    """As GNU OpenMP reports, which torch loads."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    words = command("translate", "nowhere")
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr
