"""Takes out of a workspace's repositories what comes after HEAD: the commit that solves the task is often in there."""

import shutil
import subprocess
from pathlib import Path

from proxy_addons.errors import ConfigError


def fresh_workspace(environment: Path, workspace: Path) -> None:
    """Make `workspace` as an agent finds it: the task's `environment`, its repositories without what comes after HEAD.

    Raises ConfigError if a repository cannot be read.
    """
    shutil.copytree(environment, workspace, symlinks=True)
    forget_future(workspace)


def forget_future(workspace: Path) -> None:
    """Delete, in every repository below `workspace`, all that HEAD's own history does not hold.

    Branches and tags elsewhere, remotes, stash and reflogs go, and the objects that only they reach.
    Raises ConfigError if a repository cannot be read.
    """
    for folder in sorted(workspace.rglob(".git")):
        if folder.is_dir() and not folder.is_symlink():
            _forget(folder)


def later_refs(git: Path) -> list[str]:
    """The refs that are no part of HEAD's history. Raises ConfigError."""
    if _git(git, "rev-parse", "--quiet", "--verify", "HEAD", check=False).returncode:
        return []  # nothing was ever committed
    known = set(_lines(git, "for-each-ref", "--merged=HEAD", "--format=%(refname)"))
    return [ref for ref in _lines(git, "for-each-ref", "--format=%(refname)") if ref not in known]


def _forget(git: Path) -> None:
    for ref in later_refs(git):
        _git(git, "update-ref", "--no-deref", "-d", ref)
    for name in ("FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REBASE_HEAD"):
        (git / name).unlink(missing_ok=True)
    _git(git, "reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
    _git(git, "repack", "-a", "-d", "-q")
    _git(git, "prune", "--expire=now")


def _lines(git: Path, *arguments: str) -> list[str]:
    return _git(git, *arguments).stdout.split()


def _git(git: Path, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    command = ["git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    try:
        done = subprocess.run([*command, f"--git-dir={git}", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError("git is not installed, and a task's workspace holds a repository: apt install git") from None
    if check and done.returncode:
        raise ConfigError(f"repository {git}: git {arguments[0]} failed: {done.stderr.strip()[:200]}")
    return done
