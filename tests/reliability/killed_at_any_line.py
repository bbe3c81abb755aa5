"""Kills forks of itself at each line of code that writes: `killed_at_any_line.py SCENARIO`.

Scenarios: `chunks` of a file are written; `small_files`, a job writes two files again. All is in
the current folder. Prints how many forks there were, the last of which ended.
"""

import gzip
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from kill_at import MODULES, counted

from transformer_mt.system import files, output_record, outputs
from transformer_mt.translation import small_files
from transformer_mt.translation.inputs import FilePair
from transformer_mt.translation.options import LoadOptions, SearchOptions, TranslateOptions
from transformer_mt.translation.summary import Summary
from transformer_mt.translation.translator import Translation

os.fsync = lambda descriptor: None  # a killed process loses nothing that the system holds
small_files._SYNC_THREADS = 1
MODULES["chunks"] = (files, outputs)
MODULES["small_files"] = (files, output_record, small_files)


def killed(where: str, prepare: Callable[[], object], run: Callable[[], object]) -> Iterator[int]:
    """Runs a function in forks, each of which is killed a line later, until one ends."""
    for limit in itertools.count(1):
        prepare()
        pid = os.fork()
        if not pid:
            counted(run, where, limit)()
            os._exit(0)
        has_ended = os.waitpid(pid, 0)[1] == 0
        yield limit
        if has_ended:
            print(limit)
            return


def chunks() -> None:
    """What was there, then all of it; each chunk is written once."""
    log, target = Path("log"), Path("out/out.gz")
    output = outputs.check_output(target)

    def prepare() -> None:
        log.write_text("")
        target.write_bytes(b"before")

    def write() -> int:
        with outputs.open_chunk_writer(output, {"made from": "text"}) as writer:
            began = writer.state.lines
            for number in range(began, 2):
                writer.write(f"line {number}\n", 1, {})
                with log.open("a") as file:
                    file.write(".")
        return began

    for limit in killed("chunks", prepare, write):
        written = len(log.read_text())
        if target.read_bytes() == b"before":
            assert write() - written in (0, 1), (limit, written)
        assert gzip.decompress(target.read_bytes()) == b"line 0\nline 1\n", limit
        output.discard()
        assert os.listdir("out") == ["out.gz"], (limit, os.listdir("out"))


def two_small_files() -> None:
    """Each is old or new, and known; the same command goes on."""
    options = TranslateOptions(LoadOptions(), SearchOptions())
    pairs = [FilePair(Path(f"in/{x}"), outputs.check_output(Path(f"out/{x}"))) for x in "ab"]

    def texts() -> set[str]:
        return {path.read_text() for path in Path("out").glob("[ab]")}

    def translate(mark: str) -> None:
        def translate_chunks(chunks, advance):
            return ([[Translation(line + mark, 0)] for line in lines] for lines in chunks)

        translator = SimpleNamespace(chunk_lines=9, translate_chunks=translate_chunks)
        result, record = Summary(), output_record.OutputRecord(Path("out"))
        job = small_files.SmallFiles(translator, options, {"mark": mark}, record, result)
        assert not job.translate(pairs) and not result.failed, result.failed

    def prepare() -> None:
        for path in Path("out").iterdir():
            path.unlink()
        translate("old")

    for limit in killed("small_files", prepare, partial(translate, "new")):
        assert texts() <= {"xold\n", "xnew\n"}, limit
        translate("new")
        left = {name for name in os.listdir("out") if not name.endswith(".lock")}
        assert texts() == {"xnew\n"} and left == {output_record.RECORD, "a", "b"}, (limit, left)


if __name__ == "__main__":
    {"chunks": chunks, "small_files": two_small_files}[sys.argv[1]]()
