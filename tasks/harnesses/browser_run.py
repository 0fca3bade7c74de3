"""The program around a browser. It runs inside the sandbox, on the Python of the browser harness's own environment.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... OPENAI_MODEL=... python browser_run.py CHROMIUM -- INSTRUCTION

It starts the task's site if the workspace has one (`site/server.py PORT`), shows the policy the page, does what the
policy says, one JSON action a turn (docs/browser.md), and prints one JSON object at the end: `status`, and why.
Exit status 0: the policy said that it is done. 1: the policy went on until it could not. 255: something here broke,
which is not the policy's doing.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn
from urllib.error import HTTPError
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request
from urllib.request import urlopen

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext
    from playwright.sync_api import Page
    from playwright.sync_api import ProxySettings

WIDTH, HEIGHT = 1280, 720
SITE = "site/server.py"
PORT = 8000
ANSWER = "answer.txt"
MALFORMED = 3
"""So many replies in a row that are no action end the rollout."""

MAX_SCROLL = 10_000
MAX_WAIT_S = 10
_SITE_S = 30.0
_LOAD_MS = 15_000
_SETTLE_MS = 300  # a click begins to load the next page only after it returned
_TRIES = 3
_BROKEN = 255

SYSTEM_PROMPT = f"""\
You operate a web browser. You are shown its page, {WIDTH} by {HEIGHT} pixels; x counts from the left, y from the top.
Answer with exactly one action, a JSON object and nothing else:
{{"action": "click", "x": 640, "y": 360}}
{{"action": "type", "text": "into what has the focus"}}
{{"action": "key", "key": "Enter"}}
{{"action": "scroll", "x": 640, "y": 360, "dy": 400}}
{{"action": "goto", "url": "http://..."}}
{{"action": "wait", "seconds": 1}}
{{"action": "done", "answer": "what was asked for, or nothing"}}"""

_Field = tuple[type, int, int]
_X: _Field = (int, 0, WIDTH - 1)
_Y: _Field = (int, 0, HEIGHT - 1)
_TEXT: _Field = (str, 0, 0)
ACTIONS: dict[str, dict[str, _Field]] = {
    "click": {"x": _X, "y": _Y},
    "type": {"text": _TEXT},
    "key": {"key": _TEXT},
    "scroll": {"x": _X, "y": _Y, "dy": (int, -MAX_SCROLL, MAX_SCROLL)},
    "goto": {"url": _TEXT},
    "wait": {"seconds": (int, 1, MAX_WAIT_S)},
    "done": {"answer": _TEXT},
}
"""Action → its fields, all of them required: type, and the least and the largest number."""


class Refused(Exception):
    """What the policy said cannot be done; the message is for the policy."""


class Ended(Exception):
    """The rollout ends here. `status`: `budget` or `gave_up`."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse(reply: str) -> dict[str, Any]:
    """The one action that `reply` is. Raises Refused if it is anything else."""
    try:
        action = json.loads(reply, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the reply is not one JSON object ({str(error)[:100]})") from None
    if not isinstance(action, dict):
        raise Refused("the reply is not a JSON object")
    name = action.pop("action", None)
    if not isinstance(name, str) or name not in ACTIONS:
        raise Refused(f"action must be one of {', '.join(ACTIONS)}")
    fields = ACTIONS[name]
    if action.keys() != fields.keys():
        raise Refused(f"{name} takes {', '.join(fields)}, each once, and nothing else")
    for field, (kind, least, largest) in fields.items():
        value = action[field]
        if type(value) is not kind:
            raise Refused(f"{field} must be {'a whole number' if kind is int else 'text'}")
        if isinstance(value, int) and not least <= value <= largest:
            raise Refused(f"{field} must be from {least} to {largest}")
        if isinstance(value, str) and not _is_unicode(value):
            raise Refused(f"{field} holds half a character")
    if name == "goto" and not action["url"].lower().startswith(("http://", "https://")):
        raise Refused("url must begin with http:// or https://")  # a file: would show the site's own files
    return {"action": name, **action}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a field is given twice")
    return dict(pairs)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass
class Screen:
    """The browser. The newest tab is the one that is seen; a dialog of a page is accepted, and told afterwards."""

    context: "BrowserContext"
    start: str
    dialogs: list[str]

    @property
    def page(self) -> "Page":
        """The newest tab; where the page has closed its own, a new one at the start."""
        if not self.context.pages:
            self.context.new_page().goto(self.start, timeout=_LOAD_MS)
        return self.context.pages[-1]

    def do(self, action: dict[str, Any]) -> None:
        """Do it, and wait until the page stands. Raises Refused if the browser cannot."""
        from playwright.sync_api import Error

        page = self.page
        try:
            match action:
                case {"action": "click", "x": x, "y": y}:
                    page.mouse.click(x, y)
                case {"action": "type", "text": text}:
                    page.keyboard.type(text)
                case {"action": "key", "key": key}:
                    page.keyboard.press(key)
                case {"action": "scroll", "x": x, "y": y, "dy": dy}:
                    page.mouse.move(x, y)
                    page.mouse.wheel(0, dy)
                case {"action": "goto", "url": url}:
                    page.goto(url, timeout=_LOAD_MS)
                case {"action": "wait", "seconds": seconds}:
                    page.wait_for_timeout(1000 * seconds)
        except Error as error:
            self._tell(error)
        self._settle()

    def _settle(self) -> None:
        from playwright.sync_api import Error

        page = self.page
        try:
            page.wait_for_timeout(_SETTLE_MS)
            self.page.wait_for_load_state("load", timeout=_LOAD_MS)
        except Error as error:
            if not page.is_closed():
                self._tell(error)
            self._settle()  # the action closed its own tab

    def _tell(self, error: Exception) -> NoReturn:
        """What went wrong in a page is told to the policy; a browser that is gone is not its doing."""
        browser = self.context.browser
        if browser is None or not browser.is_connected():
            raise error
        raise Refused(str(error).splitlines()[0][:300]) from None

    def shown(self, text: str) -> list[dict[str, Any]]:
        """`text`, where the browser is, and what it shows, as the parts of a user turn."""
        said = "".join(f" A dialog said {dialog[:300]!r}; it was accepted." for dialog in self.dialogs)
        self.dialogs.clear()
        page = self.page
        image = base64.b64encode(page.screenshot(timeout=_LOAD_MS)).decode()
        return [
            {"type": "text", "text": f"{text}{said}\nThe page is {page.url}"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        ]


def drive(instruction: str, screen: Screen, ask: Callable[[list[dict[str, Any]]], str]) -> str:
    """Turn by turn until the policy is done; its answer. Raises Ended."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": screen.shown(instruction)},
    ]
    malformed = 0
    while True:
        reply = ask(messages)
        messages.append({"role": "assistant", "content": reply})
        try:
            action = parse(reply)
        except Refused as error:
            malformed += 1
            if malformed == MALFORMED:
                raise Ended("gave_up", f"{MALFORMED} replies in a row were no action; the last: {error}") from None
            messages.append({"role": "user", "content": f"That is no action: {error}. Nothing was done."})
            continue
        malformed = 0
        if action["action"] == "done":
            return str(action["answer"])
        told = "Done."
        try:
            screen.do(action)
        except Refused as error:
            told = f"That did not work: {error}."
        messages.append({"role": "user", "content": screen.shown(told)})


def ask_policy(url: str, key: str, model: str, messages: list[dict[str, Any]]) -> str:
    """The policy's next reply. Raises Ended if its context, the rollout's calls or the room for pictures is used up."""
    body = json.dumps({"model": model, "messages": messages}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    for left in reversed(range(_TRIES)):
        try:
            # No time limit: the rollout has one, and a call that is given up is sampled twice.
            with urlopen(Request(f"{url}/chat/completions", body, headers)) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"] or "")
        except HTTPError as error:
            said = error.read().decode(errors="replace")[:500]
            if error.code in (413, 429) or "context_length_exceeded" in said:
                raise Ended("budget", said) from None
            if error.code < 500 or not left:
                raise RuntimeError(f"the model's server answers {error.code}: {said}") from None
        except (URLError, ConnectionError):
            if not left:
                raise
        time.sleep(2 ** (_TRIES - left))
    raise AssertionError


def start_site() -> "subprocess.Popen[bytes] | None":
    """The task's site, listening; None if the workspace has none. Raises RuntimeError if it does not start."""
    if not Path(SITE).is_file():
        return None
    # Its standard output is not ours: there the last line is the harness's own.
    site = subprocess.Popen([sys.executable, "-B", SITE, str(PORT)], stdout=sys.stderr, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + _SITE_S
    while time.monotonic() < deadline:
        if site.poll() is not None:
            raise RuntimeError(f"{SITE} ended with exit status {site.returncode} before anybody came")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                return site
        time.sleep(0.05)
    raise RuntimeError(f"{SITE} does not listen on 127.0.0.1:{PORT} after {_SITE_S:g} s")


def way_out() -> "ProxySettings | None":
    """The egress port, where the task may reach hosts; Chromium takes no name and key from the environment itself."""
    if not (url := os.environ.get("HTTPS_PROXY")):
        return None
    parts = urlsplit(url)
    return {
        "server": f"http://{parts.hostname}:{parts.port}",
        "username": parts.username,
        "password": parts.password,
        "bypass": os.environ["NO_PROXY"],
    }


def run(chromium: str, instruction: str) -> dict[str, Any]:
    """One rollout; what it came to."""
    from playwright.sync_api import sync_playwright  # only this harness's environment has it

    url, model = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_MODEL"]
    key = os.environ.pop("OPENAI_API_KEY")  # neither the site nor the browser needs it
    site = start_site()
    start = f"http://127.0.0.1:{PORT}/" if site else "about:blank"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            # The sandbox around this has no namespaces left to give and a small /dev/shm.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            proxy=way_out(),
        )
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, accept_downloads=False)
        screen = Screen(context, start, [])

        def accept(dialog: Any) -> None:
            screen.dialogs.append(dialog.message)
            dialog.accept()

        context.on("dialog", accept)
        told: dict[str, Any] = {"type": "result", "browser": f"Chromium {browser.version}"}
        try:
            screen.page.wait_for_load_state("load", timeout=_LOAD_MS)
            answer = drive(instruction, screen, lambda messages: ask_policy(url, key, model, messages))
        except Ended as end:
            told |= {"status": end.status, "reason": str(end)}
        else:
            told |= {"status": "done", "reason": ""}
            if answer:
                Path(ANSWER).write_text(answer)
        if site and site.poll() is not None:
            raise RuntimeError(f"{SITE} ended by itself with exit status {site.returncode}")
        browser.close()
    if site:
        site.terminate()
        site.wait()
    return told


def main() -> int:
    """The command line; the exit status."""
    try:
        told = run(sys.argv[1], sys.argv[-1])
    except Exception as error:
        traceback.print_exc()
        told = {"type": "result", "status": "broken", "reason": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(told), flush=True)
    return {"done": 0, "broken": _BROKEN}.get(told["status"], 1)


if __name__ == "__main__":
    sys.exit(main())
