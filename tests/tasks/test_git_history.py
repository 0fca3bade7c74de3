import subprocess
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks.git_history import forget_future
from tasks.git_history import later_refs


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """HEAD at the bug, with the fix one commit later on main, in a tag, in a remote's branch, the stash, the reflog."""
    folder = tmp_path / "workspace/project"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for text in ("bug", "fix"):
        (folder / "code.txt").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", text)
    git(folder, "tag", "v2")
    git(folder, "tag", "v1", "HEAD~1")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(folder, "checkout", "-q", "-b", "work", "HEAD~1")
    (folder / "code.txt").write_text("stashed fix")
    git(folder, "stash", "-q")
    return folder


def test_the_fix_is_nowhere_and_the_past_is_kept(repository: Path) -> None:
    fixed = git(repository, "rev-parse", "v2")
    blobs = {git(repository, "rev-parse", f"{ref}:code.txt") for ref in ("v2", "stash@{0}")}
    forget_future(repository.parent)
    objects = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert not ({fixed} | blobs) & set(objects)
    assert git(repository, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/work", "refs/tags/v1"]
    assert git(repository, "log", "--all", "--format=%s").split() == ["bug"]
    assert git(repository, "status", "--porcelain") == "" and git(repository, "fsck", "--full") == ""
    assert (repository / "code.txt").read_text() == "bug"


def test_what_there_is_to_forget_is_told(repository: Path) -> None:
    later = {"refs/heads/main", "refs/tags/v2", "refs/remotes/origin/main", "refs/stash"}
    assert set(later_refs(repository / ".git")) == later
    forget_future(repository.parent)
    assert later_refs(repository / ".git") == []


def test_a_repository_without_a_commit_stays(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    forget_future(tmp_path)
    assert git(tmp_path, "status", "--porcelain") == ""


def test_no_repository_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with pytest.raises(ConfigError, match=r"repository .*\.git: git \S+ failed: "):
        forget_future(tmp_path)
