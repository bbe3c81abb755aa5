"""The prompt at a terminal, driven through a pseudo-terminal."""

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import Called, assert_one_error, command, copy_lines

from transformer_mt import load
from transformer_mt.translation.options import OutputOptions, Sampling, SearchOptions
from transformer_mt.translation.prompt import translate_interactively

LINES = copy_lines(10, 4)
LEFT, UP, CTRL_A = b"\x1b[D", b"\x1b[A", b"\x01"
CTRL_C, CTRL_D = b"\x03", b"\x04"
PASTE_BEGIN, PASTE_END = b"\x1b[200~", b"\x1b[201~"
SECONDS = 120.0


@pytest.fixture(scope="module")
def model(copy_run):
    return load(copy_run)


class Terminal:
    """The program at a pseudo-terminal, which is its stdin, stderr and, by default, stdout."""

    def __init__(self, *arguments: object, **streams: object) -> None:
        self._master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave, **streams}
        self.process = subprocess.Popen(
            command(*arguments),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is then a signal
            env={**os.environ, **_AS_A_USERS},
            **streams,
        )
        os.close(slave)
        self._seen = ""

    def wait_for(self, text: str) -> str:
        """Reads until a text is shown; gives all that was shown up to its end, without codes."""
        while text not in self._seen:
            assert self._read(), f"ended before {text!r}: {self._seen!r}"
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def interrupt(self) -> None:
        """Types Ctrl-C once it waits for a key: Python may miss a signal that comes before."""
        status = Path(f"/proc/{self.process.pid}/stat")  # of its main thread
        while status.read_text().rpartition(")")[2].split()[0] not in "SZ":
            time.sleep(0.01)
        self.type(CTRL_C)

    def end(self) -> tuple[int, str]:
        """Waits for the end; gives the exit code and the rest of what was shown."""
        while self._read():
            pass
        return self.process.wait(SECONDS), self._seen

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        ready = select.select([self._master], [], [], SECONDS)[0]
        assert ready, f"no output for {SECONDS} s after {self._seen!r}"
        try:
            data = os.read(self._master, 2**16)
        except OSError:  # Linux reports the end of a pseudo-terminal so
            return False
        text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", data.decode("utf-8", "replace"))
        self._seen += text.replace("\r\n", "\n")
        return bool(data)


_AS_A_USERS = {
    "TERM": "xterm",
    "PYTHONIOENCODING": "utf-8",
    "INPUTRC": os.devnull,
    "OMP_NUM_THREADS": "2",  # of the threads, the prompt's must get the signals
}


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Gives a function that starts the program at a terminal; kills it at the end."""
    started = []

    def start(*arguments: object, **streams: object) -> Terminal:
        started.append(Terminal(*arguments, **streams))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_lines_are_numbered(model, monkeypatch, capsys):
    """Pasted ones too: on the number depends what is drawn."""
    monkeypatch.setattr("builtins.input", Mock(side_effect=["ab\ncd", "ef", " quit "]))
    translator = model.translator(SearchOptions(sampling=Sampling(temperature=9.0)))
    translate_interactively(translator, "d\x1b", OutputOptions(format="jsonl"))
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 3]
    assert [row["text"] for row in rows] == model.sample(["ab", "cd", "ef"], temperature=9.0)
    assert shown.err.endswith("d\\x1b> ")


def test_lines_are_edited_and_recalled(exported_run, terminal):
    """Arrow keys are not part of the text; several lines may be pasted; `--output -` is allowed."""
    prompt = terminal("translate", exported_run, "--output", "-", "--scores")
    prompt.wait_for("de> ")
    for keys, answer in (
        (b"ac" + LEFT + b"b", "abc"),
        (UP + CTRL_A + b"xy ", "xy abc"),
        (PASTE_BEGIN + b"ab\rcd" + PASTE_END, "ab\n-SCORE\tcd"),
        (b"\xff", "not valid UTF-8; check the encoding of the terminal"),
        (b"abc", "abc"),
    ):
        prompt.type(keys + b"\r")
        shown = re.sub(r"-\d+\.\d{4}\s+", "-SCORE\t", prompt.wait_for("de> "))
        assert f"\n-SCORE\t{answer}\nde> " in shown or f"\n{answer}\nde> " in shown
    # Ctrl-C ends with a line feed and exit code 130; but a half-typed line is dropped first.
    prompt.type(b"ab")
    prompt.wait_for("ab")
    prompt.interrupt()
    prompt.wait_for("de> ")
    prompt.type(b"cd\r")
    assert "\tcd\n" in prompt.wait_for("de> ")
    prompt.interrupt()
    end, shown = prompt.end()
    assert end == 130 and shown.endswith("\n") and "Traceback" not in shown


def test_the_prompt_is_not_in_redirected_output(exported_run, terminal, tmp_path):
    """Translations are in the file at once; the prompt is at the terminal."""
    with (tmp_path / "out").open("wb") as out:
        prompt = terminal("translate", exported_run, stdout=out)
        prompt.wait_for("de> ")
        prompt.type(b"abc\n")
        prompt.wait_for("de> ")
        assert (tmp_path / "out").read_bytes() == b"abc\n"
        prompt.type(CTRL_D)
        assert prompt.end()[0] == 0
    assert (tmp_path / "out").read_bytes() == b"abc\n"


def test_what_a_terminal_decides(copy_run, tmp_path, call, monkeypatch):
    """No prompt for files, or into a file; no model is loaded before."""
    (tmp_path / "in").write_text("abc\n")
    master, terminal = pty.openpty()

    def translate(*words: object) -> Called:
        return call("translate", *words, stdin=os.dup(terminal))

    monkeypatch.setattr("builtins.input", None)
    assert translate(copy_run, "--input", tmp_path / "in").out == b"abc\n"
    for options in (["-o", "out"], ["--summary", "s"], ["--column", "1"]):
        assert_one_error(translate("none", *options), "have no effect: name a file as --input")
    os.close(master)
    os.close(terminal)
