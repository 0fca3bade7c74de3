"""What a local sandbox sees of the host, the same for every backend."""

import os
from dataclasses import dataclass
from pathlib import Path

from tasks.sandboxes import HOME
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Spec

INSIDE = "/run/openforge"
"""Where the control folder is seen: `init.py`, the ways' sockets and `report`."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs", "ssl/openssl.cnf")
# Written, not copied: the host's own users and host names are nobody's business in there.
_WRITTEN = {
    "passwd": f"root:x:0:0::/root:/usr/sbin/nologin\nagent:x:1000:1000::{HOME}:/bin/bash\n",
    "group": "root:x:0:\ntty:x:5:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host at `target` inside."""

    source: Path
    target: str
    writable: bool = False


def write_etc(folder: Path) -> None:
    """Write the sandbox's own small /etc files into `folder`."""
    folder.mkdir()
    for name, text in _WRITTEN.items():
        (folder / name).write_text(text)


def links() -> dict[str, str]:
    """Path inside → target, for the system folders that are links on this host (/bin → usr/bin)."""
    return {f"/{name}": os.readlink(f"/{name}") for name in _SYSTEM if os.path.islink(f"/{name}")}


def plan(spec: Spec, control: Path, etc: Path) -> list[Mount]:
    """All mounts, in the order in which they must be made. /proc, /dev and /tmp are the backend's."""
    system = [Path("/", name) for name in _SYSTEM]
    host_etc = [Path("/etc", name) for name in _ETC]
    return [
        *(Mount(path, str(path)) for path in system if path.is_dir() and not path.is_symlink()),
        *(Mount(path, str(path)) for path in host_etc if path.exists()),
        *(Mount(etc / name, f"/etc/{name}") for name in _WRITTEN),
        Mount(control, INSIDE),
        Mount(control / "report", f"{INSIDE}/report", writable=True),
        Mount(spec.workspace.resolve(), WORKSPACE, writable=True),
        Mount(spec.home.resolve(), HOME, writable=True),
        *(Mount(source.resolve(), target) for target, source in spec.binds_ro.items()),
        *(Mount(source.resolve(), target, writable=True) for target, source in spec.binds_rw.items()),
    ]
