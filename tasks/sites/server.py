"""Three small sites in one file: a shop, a form, a search. Standard library only, because it runs in a sandbox.

    python3 server.py PORT

`state.json` beside it is all there is: which site it is, what it shows, and under "done" what its visitor did. Only a
POST changes it. Every element stands where the code says, whatever the fonts, so that a script can click it.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from urllib.parse import urlsplit

STATE = Path(__file__).with_name("state.json")
ROW = 60
"""Height of a row, pixels; the first one begins two below the top."""

State = dict[str, Any]
Fields = dict[str, str]


class Wrong(Exception):
    """What the visitor did is not accepted; the message is shown."""


def at(left: int, top: int, width: int, html: str) -> str:
    """`html` in a box of one row."""
    return f'<div style="left:{left}px;top:{top}px;width:{width}px;height:{ROW - 12}px">{html}</div>'


def button(left: int, top: int, label: str, **attributes: str) -> str:
    """A button that sends the form around it."""
    given = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return at(left, top, 160, f"<button{given}>{escape(label)}</button>")


def link(left: int, top: int, label: str, href: str) -> str:
    """A link."""
    return at(left, top, 400, f'<a href="{escape(href)}">{escape(label)}</a>')


def form(action: str, html: str) -> str:
    """A form; its boxes stand on the page."""
    return f'<form method="post" action="{action}" autocomplete="off">{html}</form>'


def row(number: int) -> int:
    """The top of a row, pixels."""
    return ROW * (number + 2)


def shop(state: State, path: str, query: Fields) -> str:
    """Products with a button each; the cart, which is ordered as a whole."""
    cart = state["cart"]
    if path == "/cart":
        lines = [at(40, row(i), 400, escape(name)) for i, name in enumerate(cart)]
        return link(40, 60, "Products", "/") + form("/order", "".join([*lines, button(600, 60, "Order")]))
    lines = [
        at(40, row(i), 400, escape(item["name"]))
        + at(440, row(i), 120, f"{item['price']} €")
        + button(600, row(i), "Add to cart", name="item", value=str(i))
        for i, item in enumerate(state["products"])
    ]
    return link(40, 60, f"Cart ({len(cart)})", "/cart") + form("/add", "".join(lines))


def shop_post(state: State, path: str, fields: Fields) -> str:
    """What is ordered goes to "done", one list an order."""
    if path == "/add":
        state["cart"].append(state["products"][int(fields["item"])]["name"])
        return "/"
    if not state["cart"]:
        raise Wrong("The cart is empty.")
    state["done"].append(state["cart"])
    state["cart"] = []
    return "/cart"


def sign_up(state: State, path: str, query: Fields) -> str:
    """A form of two texts, a choice and a box that is ticked at first."""
    if path == "/thanks":
        return at(40, row(0), 600, "Thank you, you are registered.")
    plans = [
        at(240 + 160 * i, row(2), 150, f'<label><input type="radio" name="plan" value="{plan}"> {plan}</label>')
        for i, plan in enumerate(state["plans"])
    ]
    html = [
        *(at(40, row(i), 180, label) for i, label in enumerate(("Name", "Town", "Plan", "Newsletter"))),
        at(240, row(0), 400, '<input name="name">'),
        at(240, row(1), 400, '<input name="town">'),
        *plans,
        at(240, row(3), 400, '<label><input type="checkbox" name="newsletter" value="yes" checked> send it</label>'),
        button(240, row(4), "Register"),
    ]
    return form("/register", "".join(html))


def sign_up_post(state: State, path: str, fields: Fields) -> str:
    """A registration goes to "done"."""
    missing = [name for name in ("name", "town", "plan") if not fields.get(name, "").strip()]
    if missing:
        raise Wrong(f"Please fill in: {', '.join(missing)}.")
    kept = {name: fields[name].strip() for name in ("name", "town", "plan")}
    state["done"].append(kept | {"newsletter": "newsletter" in fields})
    return "/thanks"


def search(state: State, path: str, query: Fields) -> str:
    """Articles by the words in them; the button that keeps one stands below its long text, off the first screen."""
    if path == "/article":
        number = int(query["id"])
        article = state["articles"][number]
        lines = [at(40, row(i), 1100, escape(text)) for i, text in enumerate([article["title"], *article["text"]])]
        return form("/keep", "".join([*lines, button(40, row(len(lines)), "Keep", name="id", value=str(number))]))
    words = query.get("q", "").lower().split()
    found = [
        (number, article["title"])
        for number, article in enumerate(state["articles"])
        if words and all(word in " ".join([article["title"], *article["text"]]).lower() for word in words)
    ]
    box = at(40, 60, 400, f'<input name="q" value="{escape(query.get("q", ""))}">')
    lines = [link(40, row(i), title, f"/article?id={number}") for i, (number, title) in enumerate(found)]
    told = f"{len(found)} found" if words else "Type words and press Enter."
    return f'<form action="/">{box}</form>' + "".join(lines) + at(460, 60, 400, told)


def search_post(state: State, path: str, fields: Fields) -> str:
    """The title of the article that is kept goes to "done"."""
    state["done"].append(state["articles"][int(fields["id"])]["title"])
    return "/"


Show = Callable[[State, str, Fields], str]
SITES: dict[str, tuple[Show, Show]] = {
    "shop": (shop, shop_post),
    "form": (sign_up, sign_up_post),
    "search": (search, search_post),
}
"""Site → what a GET shows (HTML), and what a POST does (the path to go on to)."""

_STYLE = """
body { margin: 0; font: 18px sans-serif; }
div { position: absolute; }
a, label { display: block; height: 100%; }
div > input, button { box-sizing: border-box; width: 100%; height: 100%; font: inherit; }
h1 { position: absolute; left: 40px; top: 0; font-size: 24px; }
.wrong { left: 600px; top: 16px; color: #b00; }
"""


def document(title: str, html: str, wrong: str = "") -> str:
    """The whole page."""
    told = f'<div class="wrong">{escape(wrong)}</div>' if wrong else ""
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html><head>{head}</head><body><h1>{escape(title)}</h1>{told}{html}</body></html>"


class Site(BaseHTTPRequestHandler):
    """One request."""

    lock = threading.Lock()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        self._answer(parse_qs(self.rfile.read(size).decode(errors="replace"), keep_blank_values=True))

    def _answer(self, sent: dict[str, list[str]] | None = None) -> None:
        parts, wrong = urlsplit(self.path), ""
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self.lock:
            state = json.loads(STATE.read_text())
            show, post = SITES[state["site"]]
            try:
                if sent is not None:
                    fields = {name: values[-1] for name, values in sent.items()}
                    where = post(state, parts.path, fields)
                    _write(state)
                    self._send(HTTPStatus.SEE_OTHER, location=where)
                    return
            except Wrong as error:
                wrong = str(error)
            except (KeyError, ValueError, IndexError):
                self._send(HTTPStatus.BAD_REQUEST, "There is no such thing.")
                return
            try:
                html = show(state, "/" if wrong else parts.path, query)
            except (KeyError, ValueError, IndexError):
                self._send(HTTPStatus.NOT_FOUND, "There is no such page.")
                return
        self._send(HTTPStatus.OK, document(state["title"], html, wrong))

    def _send(self, status: HTTPStatus, text: str = "", **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"content-type": "text/html; charset=utf-8", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _write(state: State) -> None:
    temporary = STATE.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, STATE)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Site).serve_forever()
