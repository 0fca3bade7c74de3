"""What a ClawEval task needs, and what of it is not on this machine."""

import hashlib
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from tasks.adapters import Need
from tasks.adapters import judge
from tasks.adapters.claweval.sheet import Service
from tasks.adapters.claweval.sheet import Sheet
from tasks.adapters.claweval.sheet import find
from tasks.sandboxes import PYTHON

_WEB = frozenset({"web_real", "web_real_injection"})
_ASKS_JUDGE = re.compile(r"\bjudge\.|\(judge\b|\bjudge[,)]")
_PEER = re.compile(r"load_peer_grader\(\s*[\"']([^\"']+)")
_SHARED = re.compile(r"from claw_eval\.graders\.(\w+) import")
_OUTSIDE = re.compile(r"\bsubprocess\b|\bos\.system\b")
_PROGRAMS = {"ffmpeg": "ffmpeg", "ffprobe": "ffprobe", "take_recording.py": "playwright", "node ": "node"}
_PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".mp4", ".mov", ".mkv", ".webm", ".avi"}
NOT_THERE = "it is not in the checkout (videos are only in the Hugging Face data set)"


def needs(sheet: Sheet, checkout: Path) -> tuple[Need, ...]:
    """Everything that a task needs besides a harness and a shell, each once."""
    found = [_service(service, checkout) for service in sheet.services]
    ports = {service.port for service in sheet.services}
    unserved = [entry for entry in sheet.tool_endpoints if (urlsplit(entry.url).port or 80) not in ports]
    found += [Need("service", f"for {entry.tool_name}", "no service of the task serves it") for entry in unserved]
    found += [Need("file", name, "" if find(sheet, checkout, name) else NOT_THERE) for name in _all_files(sheet)]
    commands = "\n".join(sheet.env_snapshot_commands)
    for mark, program in _PROGRAMS.items():
        if mark in commands:
            missing = "" if _has(program) else "install it; what the agent leaves is looked at with it"
            found.append(Need("program", program, missing))
    if sheet.user_agent.enabled:
        found.append(Need("user", "played by a model", "a rollout is one session of a harness, with no user in it"))
    if _sees(sheet):
        found.append(Need("pictures", "", "its harness must show the policy images and videos; ours read text"))
    grader = checkout / "tasks" / sheet.folder / "grader.py"
    if not (grader.is_file() and (checkout / "src/claw_eval").is_dir()):
        found.append(Need("grader", "", "only task files are here; give a whole checkout"))
    else:
        source = grader_source(grader)
        if _OUTSIDE.search(source):
            found.append(Need("grader", "in a sandbox", "it starts programs on files that the agent left"))
        if _ASKS_JUDGE.search(source):
            found.append(judge.need())
    return tuple(dict.fromkeys(found))


def _service(service: Service, checkout: Path) -> Need:
    program = next((word for word in service.command.split() if word.endswith(".py")), "")
    if service.name in _WEB:
        return Need(
            "web", service.name, "it searches the live web with a paid key (SERP_DEV_KEY), from outside the sandbox"
        )
    if not (checkout / program).is_file():
        return Need("service", service.name, f"{program} is not here; give a whole checkout")
    return Need("service", service.name)


def _all_files(sheet: Sheet) -> list[str]:
    return [*sheet.files, *sheet.sandbox_grader_files, *sheet.local_grader_files]


def _sees(sheet: Sheet) -> bool:
    """Whether the agent must look at pictures; a web page that it only writes it need not see."""
    return any(Path(name).suffix.lower() in _PICTURES for name in (*sheet.files, *sheet.prompt.attachments))


def grader_source(grader: Path, seen: frozenset[Path] = frozenset()) -> str:
    """A grader's text and that of the graders which it builds on, other tasks' and ClawEval's."""
    text = grader.read_text()
    root = grader.parents[2]
    peers = [root / "tasks" / name / "grader.py" for name in _PEER.findall(text)]
    peers += [root / "src/claw_eval/graders" / f"{name}.py" for name in _SHARED.findall(text) if name != "base"]
    seen |= {grader}
    return "\n".join([text, *(grader_source(peer, seen) for peer in peers if peer.is_file() and peer not in seen)])


@cache
def _has(program: str) -> bool:
    """Whether a sandbox here has a program; playwright is a package of its python3 with browsers of its own."""
    if program != "playwright":
        return shutil.which(program) is not None
    found = subprocess.run([PYTHON, "-c", "import playwright"], capture_output=True)
    return found.returncode == 0


def code(checkout: Path) -> bytes:
    """A digest of the checkout's own programs: the services, and what graders import."""
    files = sorted(file for place in ("src", "mock_services") for file in (checkout / place).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
