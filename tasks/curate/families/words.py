"""What the families draw their names and texts from."""

import random

_FOLDERS = "archive assets backup config data docs drafts exports inbox notes parts records reports share"
_NOUNS = """
anchor apple badge basket beacon bottle bridge candle carpet castle cement circle copper corner cotton desert engine
feather filter forest garden hammer harbor helmet island kettle ladder lantern marble mirror needle orange paddle pepper
pillow planet pocket rabbit ribbon rocket saddle shadow silver spider summer tunnel valley violin
"""
_PEOPLE = "ada boris carla dilan emma farid greta hugo irene jonas kira leon mila nils olga pavel"
_CITIES = "athens basel cairo delhi essen fargo geneva hanoi izmir jakarta kyoto lagos malmo nantes"
FOLDERS, NOUNS, PEOPLE, CITIES = (tuple(text.split()) for text in (_FOLDERS, _NOUNS, _PEOPLE, _CITIES))


def sentence(rng: random.Random, length: int) -> str:
    """`length` random nouns in a line."""
    return " ".join(rng.choice(NOUNS) for _ in range(length))


def lines(rng: random.Random, count: int, length: int = 5) -> list[str]:
    """`count` lines of `length` nouns."""
    return [sentence(rng, length) for _ in range(count)]


def paths(rng: random.Random, folder: str, count: int, suffix: str, deep: bool = False) -> list[str]:
    """`count` different files below `folder`; `deep`: some of them in folders of their own."""
    names = rng.sample(NOUNS, count)
    return [
        f"{folder}/{rng.choice(PEOPLE)}/{name}{suffix}" if deep and rng.random() < 0.5 else f"{folder}/{name}{suffix}"
        for name in names
    ]


def joined(rows: list[str]) -> str:
    """Lines as a file's text."""
    return "".join(f"{row}\n" for row in rows)
