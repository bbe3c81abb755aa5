"""What a run records of the source it was made with."""

import shutil
import subprocess

from transformer_mt import version


def test_the_commit_is_that_of_the_package(tmp_path):
    """A repository that merely surrounds a copy says nothing; edits and new files are told."""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(version.__file__, package)
    (tmp_path / "README.md").touch()
    assert version.describe_commit(package) == "unknown"
    git("init", "-q"), git("add", "README.md"), git("commit", "-qm", "surrounds")
    assert version.describe_commit(package) == "unknown"
    git("add", "."), git("commit", "-qm", "holds")
    commit = git("rev-parse", "--short", "HEAD")
    (tmp_path / "README.md").write_text("changed")
    assert version.describe_commit(package) == commit
    (package / "new.py").touch()
    assert version.describe_commit(package) == f"{commit} with uncommitted changes"
    (package / "new.py").unlink()
    (package / "version.py").write_text("")
    assert version.describe_commit(package) == f"{commit} with uncommitted changes"


def test_the_digest_is_of_names_and_contents(tmp_path):
    """Sabotage: hash the contents alone."""
    digests = set()
    for number, names in enumerate((["a", "b"], ["a", "c"], ["a", "b", "c"], ["b", "c", "d"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").write_text("x = 2\n" if name == "d" else "x = 1\n")
        digests.add(version._digest(folder))
    (folder / "d.py").write_text("x = 1\n")
    assert len(digests | {version._digest(folder)}) == 5
