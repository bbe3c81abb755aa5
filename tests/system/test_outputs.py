"""What is replaced and what is written directly; chunks that outlive the process."""

import gzip
import json
import os
import shlex
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import file_size_limit, refuses

from transformer_mt.errors import DataError, OutputError
from transformer_mt.system import outputs
from transformer_mt.system.outputs import check_output, open_chunk_writer, open_output

MADE_FROM = {"input": "text", "beam_size": 4}


def test_a_file_is_replaced_through_its_links_with_its_mode(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to("second")
    (tmp_path / "second").symlink_to("folder/target")
    outputs.write_lines(["ä", "b"], check_output(link))
    assert link.is_symlink() and (tmp_path / "second").is_symlink()
    assert target.read_text() == "ä\nb\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(target.parent) == ["target"]
    # A link to a file that does not exist yet: the file is made where the link points.
    (tmp_path / "new").symlink_to("folder/new")
    outputs.write_lines(["a"], check_output(tmp_path / "new"))
    assert (tmp_path / "folder" / "new").read_text() == "a\n" and (tmp_path / "new").is_symlink()
    outputs.write_lines(["a", "b"], check_output(tmp_path / "a.gz"))
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"a\nb\n"


def test_a_file_appears_when_it_is_whole(tmp_path, monkeypatch):
    """What was there stays until then, and if something goes wrong."""
    path = tmp_path / "out"
    path.write_text("before")
    path.chmod(0o600)
    # A private file never has a readable copy beside it, not even before the mode is copied.
    monkeypatch.setattr("shutil.copymode", lambda source, copy: None)
    with open_output(check_output(path)) as file:
        file.write(b"after")
        assert path.read_text() == "before"
        assert stat.S_IMODE((tmp_path / ".out.partial").stat().st_mode) == 0o600
    with pytest.raises(ValueError), open_output(check_output(path)) as file:
        raise ValueError
    assert path.read_text() == "after" and os.listdir(tmp_path) == ["out"]


def test_a_named_pipe_and_a_device_stay(tmp_path):
    pipe, device, link = tmp_path / "pipe.gz", tmp_path / "null", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    received = []
    for path in (pipe, link):
        reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
        reader.start()
        outputs.write_lines(["a"], check_output(path))
        reader.join(10)
    assert [gzip.decompress(received[0]), received[1]] == [b"a\n", b"a\n"]
    assert pipe.is_fifo() and link.is_symlink()
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        outputs.write_lines(["a"], check_output(device))
    except PermissionError:
        pytest.skip("only root may make devices, and not on every file system")
    assert device.is_char_device() and sorted(os.listdir(tmp_path)) == ["link", "null", "pipe.gz"]


def test_descriptors_of_the_process(tmp_path):
    """Written straight into: what a shell appends to is kept."""
    program = "from transformer_mt.system.outputs import *; from pathlib import Path; import sys"
    program += '; [write_lines(["new"], check_output(Path(path))) for path in sys.argv[1:]]'
    write = f"{sys.executable} -c {shlex.quote(program)}"
    (tmp_path / "file").write_text("old\n")
    script = f"{write} /dev/stdout /dev/fd/3 /dev/stderr >(cat > copy) >> file 3>> file 2>> file"
    subprocess.run(["bash", "-c", f"{script}; wait"], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "file").read_text() == "old\nnew\nnew\nnew\n"
    assert sorted(os.listdir(tmp_path)) == ["copy", "file"]
    message = "/dev/fd/99: Bad file descriptor"
    refuses(OutputError, message, check_output, Path("/dev/fd/99"))


def test_outputs_that_are_refused(tmp_path, monkeypatch):
    """Each by the path as it was typed."""
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("text")
    Path("link").symlink_to("in")
    Path("dead").symlink_to("nodir/x")
    Path("folder").mkdir()
    refused = {
        "nodir/x": f"nodir/x: there is no folder {tmp_path}/nodir",
        "dead": f"dead: there is no folder {tmp_path}/nodir",
        "folder": "folder: is a directory; name a file",
        "./in": "in: is also an input",
        "link": "link: is also an input",
    }
    inputs = outputs.resolve_inputs([None, Path("in")])
    for name, message in refused.items():
        refuses(OutputError, f"^{message}", check_output, Path(name), inputs)
    with open(os.devnull, "w") as file:  # as `< /dev/null > /dev/null`
        check_output(Path(f"/dev/fd/{file.fileno()}"), outputs.resolve_inputs([Path(file.name)]))
    stdout = os.dup(1)
    with open("in", "a") as file:  # as `< in >> in`
        appended = Path(f"/dev/fd/{file.fileno()}")
        refuses(OutputError, "also an input", check_output, appended, inputs)
        os.dup2(file.fileno(), 1)
        try:
            refuses(OutputError, "^stdout: is also an input", check_output, None, inputs)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "in")
    refuses(OutputError, "in: is a mounted file; mount its folder", check_output, Path("in"))
    for denied in (tmp_path / "in", tmp_path):
        monkeypatch.setattr("os.access", lambda path, mode, denied=denied: Path(path) != denied)
        refuses(OutputError, "in: it or its folder is not writable", check_output, Path("in"))


def write_two(output, fingerprint=MADE_FROM, error=None) -> int:
    """Writes two chunks, then fails; gives the number of lines that were kept before."""
    with open_chunk_writer(output, fingerprint) as writer:
        kept = writer.state.lines
        writer.write("a\n", 1, {"split": 1, "cut": 1})
        writer.write("b\nc\n", 2, {"cut": 1})
        if error:
            raise error
    return kept


def test_chunks_are_kept_and_counted(tmp_path, caplog):
    """A warning says how many lines are kept; the state says what they were made from."""
    output = check_output(tmp_path / "out.gz")
    refuses(DataError, "^broken$", write_two, output, error=DataError("broken"))
    kept = f"stopped: 3 finished lines are kept in {output.partial}; run the same command again"
    assert caplog.messages[-1].startswith(kept)
    data = b"".join(gzip.compress(part, mtime=0) for part in (b"a\n", b"b\nc\n"))
    assert output.partial.read_bytes() == data and not output.target.exists()
    counts = {"chunks": 2, "bytes": len(data), "lines": 3, "counts": {"cut": 2, "split": 1}}
    assert json.loads(output.state.read_bytes()) == {"fingerprint": MADE_FROM, **counts}
    assert write_two(output) == 3
    assert gzip.decompress(output.target.read_bytes()) == b"a\nb\nc\n" * 2
    assert os.listdir(tmp_path) == ["out.gz"]


def test_chunks_are_on_disk_before_the_state_counts_them(tmp_path, monkeypatch):
    """Even after a power failure."""
    output, events = check_output(tmp_path / "out"), []
    sync = os.fsync

    def note(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    write_two(output)
    chunk = [".out.partial", "..out.state.partial", tmp_path.name]
    assert events == [*chunk, *chunk, ".out.partial", tmp_path.name]


@pytest.mark.parametrize("damage", ["short", "null", "no partial"])
def test_a_state_that_does_not_fit_is_not_used(tmp_path, damage):
    output = check_output(tmp_path / "out")
    refuses(DataError, "", write_two, output, error=DataError("broken"))
    if damage == "short":
        os.truncate(output.partial, 5)
    elif damage == "no partial":
        output.partial.unlink()
    else:
        state = {**json.loads(output.state.read_text()), "lines": None}
        output.state.write_text(json.dumps(state))
    assert write_two(output) == 0 and output.target.read_text() == "a\nb\nc\n"


def test_another_writer_of_the_file_ends_the_state(tmp_path):
    """Its bytes would be taken for chunks; without a fingerprint nothing is kept."""
    output = check_output(tmp_path / "out")
    refuses(DataError, "^broken$", write_two, output, None, DataError("broken"))
    assert not os.listdir(tmp_path)
    for other in (lambda: open_output(output), lambda: open_chunk_writer(output, {"other": 1})):
        refuses(DataError, "", write_two, output, error=DataError("broken"))
        with other():
            assert not output.state.exists()


@pytest.mark.parametrize(("largest", "text"), [(2000, "x" * 3000), (50, "x")])
def test_a_write_that_fails(tmp_path, caplog, largest, text):
    """Of a chunk, or of the state, as on a full disk; what was finished is kept."""
    output, message = check_output(tmp_path / "out"), "out: File too large"
    with pytest.raises(OutputError, match=message), open_chunk_writer(output, MADE_FROM) as writer:
        writer.write("abc\n", 3, {})
        with file_size_limit(largest):
            writer.write(text, 1, {})
    assert "3 finished lines are kept" in caplog.text
    with open_chunk_writer(output, MADE_FROM) as writer:
        writer.write("d\n", 1, {})
    assert output.target.read_text() == "abc\nd\n"
