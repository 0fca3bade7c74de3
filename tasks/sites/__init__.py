"""Tasks for the browser harness: small local sites (a shop, a form, a search), written as Harbor folders by code.

    python -m tasks.sites DIR

A task's site is `environment/site/`: `server.py`, which the harness starts, and its state, which alone is scored.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

SERVER = Path(__file__).with_name("server.py")

_PRODUCTS = {"Kettle": 29, "Lamp": 35, "Teapot": 18, "Toaster": 42, "Tray": 12, "Clock": 24}
_PLANS = ("basic", "plus", "family")
_ARTICLES = {
    "Tides": "The moon pulls the sea. Twice a day the water rises and falls.",
    "Moths": "Most moths fly at night. They find each other by scent.",
    "Bridges": "An arch carries weight to its ends. Rope bridges sway.",
    "Salt": "Salt is won from the sea or from mines. It keeps food.",
    "Lighthouses": "A lighthouse warns ships. Its lens throws the light far over the sea.",
    "Owls": "Owls hunt at night. Soft feathers make their flight silent.",
}
_PARAGRAPHS = 14
"""Lines below an article's own, so that its button is off the first screen."""


@dataclass(frozen=True)
class Sketch:
    """A task before it is written. `done` is what the visitor must bring about, exactly; `posts` do it, for the canary:
    path and fields of each."""

    name: str
    site: str
    split: str
    instruction: str
    state: dict[str, Any]
    done: list[Any]
    posts: tuple[tuple[str, dict[str, str]], ...]


def sketches() -> Iterator[Sketch]:
    """All tasks: of each site one to train on and one held out."""
    names = list(_PRODUCTS)
    products = {"products": [{"name": name, "price": price} for name, price in _PRODUCTS.items()], "cart": []}
    for split, wanted in (("train", ["Teapot"]), ("heldout", ["Kettle", "Clock"])):
        posts = [("/add", {"item": str(names.index(name))}) for name in wanted]
        say = f"Place one order in the shop: one {' and one '.join(wanted)}, and nothing else."
        yield Sketch(f"shop-{split}", "shop", split, say, products, [wanted], (*posts, ("/order", {})))
    for split, name, town, plan, newsletter in (
        ("train", "Ada Berg", "Turin", "plus", False),
        ("heldout", "Jan Novak", "Brno", "family", True),
    ):
        fields = {"name": name, "town": town, "plan": plan}
        say = f"Register {name} from {town} for the {plan} plan, {'with' if newsletter else 'without'} the newsletter."
        post = fields | ({"newsletter": "yes"} if newsletter else {})
        done = [fields | {"newsletter": newsletter}]
        yield Sketch(f"form-{split}", "form", split, say, {"plans": _PLANS}, done, (("/register", post),))
    more = [f"{number}. There is more to say about this, and it is said elsewhere." for number in range(_PARAGRAPHS)]
    articles = [{"title": title, "text": [text, *more]} for title, text in _ARTICLES.items()]
    for split, about, title in (("train", "ships", "Lighthouses"), ("heldout", "scent", "Moths")):
        say = f"Find the article that mentions {about}, and keep it. Keep no other."
        post = {"id": str(list(_ARTICLES).index(title))}
        yield Sketch(f"search-{split}", "search", split, say, {"articles": articles}, [title], (("/keep", post),))


def generate(out: Path) -> None:
    """Write the task folders into `out`. Raises FileExistsError if one is already there."""
    for sketch in sketches():
        _write(out / sketch.name, sketch)


def _write(folder: Path, sketch: Sketch) -> None:
    folder.mkdir(parents=True)
    state = {"site": sketch.site, "title": sketch.site.capitalize(), "done": [], **sketch.state}
    posts = [(path, urlencode(fields)) for path, fields in sketch.posts]
    texts = {
        "instruction.md": f"{sketch.instruction}\n",
        "task.toml": _TOML.format(kind=sketch.site, split=sketch.split),
        "environment/site/state.json": json.dumps(state, indent=1),
        "tests/expected.json": json.dumps(sketch.done),
        "tests/test.sh": _TEST,
        "solution/solve.sh": _SOLVE.format(posts=posts),
    }
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copy(SERVER, folder / "environment/site")


_TOML = """\
version = "1.0"

[metadata]
kind = "{kind}"
split = "{split}"
difficulty = "easy"

[verifier]
timeout_sec = 20.0

[agent]
timeout_sec = 300.0

[environment]
cpus = 1
memory_mb = 2048
"""

_TEST = """\
#!/bin/sh
# Runs in a copy of the workspace; what the site remembers decides, and nothing that the agent says.
if python3 -I - <<'END'
import json
import os
done = json.load(open("site/state.json"))["done"]
raise SystemExit(done != json.load(open(os.environ["TEST_DIR"] + "/expected.json")))
END
then reward=1; else reward=0; fi
echo $reward > "${VERIFIER_REWARD_FILE:-/logs/verifier/reward.txt}"
"""

_SOLVE = """\
#!/bin/sh
python3 -B site/server.py 8000 &
python3 -I - <<'END'
import time
import urllib.request
for path, body in {posts}:
    for _ in range(200):
        try:
            urllib.request.urlopen("http://127.0.0.1:8000" + path, body.encode())
            break
        except urllib.error.URLError:
            time.sleep(0.05)
END
kill $!
"""
