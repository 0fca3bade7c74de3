"""Files and folders: renaming, moving, finding, deleting."""

import random

from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import joined
from tasks.curate.families.words import paths
from tasks.curate.families.words import sentence

_SUFFIXES = (".txt", ".log", ".csv", ".md", ".bak")
_OTHERS = ("readme", "index", "summary", "todo")


def new_suffix(rng: random.Random, level: int, split: str) -> Draft:
    """All files of one suffix get another one."""
    folder, (old, new, other) = rng.choice(FOLDERS), rng.sample(_SUFFIXES, 3)
    found = paths(rng, folder, 2 * level, old, deep=level > 1)
    texts = {path: f"{sentence(rng, 3)}\n" for path in found}
    rest = {f"{folder}/{rng.choice(_OTHERS)}{other}": "stays\n"}
    after = {path.removesuffix(old) + new: text for path, text in texts.items()} | rest
    deep = " and its folders" if level > 1 else ""
    say = rng.choice(
        (
            f"Rename the {old} files in {folder}{deep} so that they end in {new}.",
            f"Every file in {folder}{deep} that ends in {old} should end in {new} instead.",
        )
    )
    solve = f"find {folder} -name '*{old}' -exec sh -c 'mv \"$1\" \"${{1%{old}}}{new}\"' _ {{}} \\;"
    return Draft(say, texts | rest, check(after, gone=tuple(texts)), solve)


def rename_pairs(rng: random.Random, level: int, split: str) -> Draft:
    """Files get the names of a list that is part of the request, however long that is."""
    folder = rng.choice(FOLDERS)
    count = rng.randint(2, 2 + 12 * level)
    names = [f"{first}-{rng.choice(NOUNS)}" for first in rng.sample(NOUNS, count) for _ in range(2)]
    names = list(dict.fromkeys(names))
    count = len(names) // 2
    pairs = list(zip(names[:count], names[count : 2 * count], strict=True))
    texts = {f"{folder}/{old}.dat": f"{sentence(rng, 2)}\n" for old, _ in pairs}
    after = {f"{folder}/{new}.dat": texts[f"{folder}/{old}.dat"] for old, new in pairs}
    table = "; ".join(f"{old}.dat becomes {new}.dat" for old, new in pairs)
    solve = joined([f"mv {folder}/{old}.dat {folder}/{new}.dat" for old, new in pairs])
    return Draft(f"Rename files in {folder}: {table}.", texts, check(after, gone=tuple(texts)), solve)


def by_suffix(rng: random.Random, level: int, split: str) -> Draft:
    """Files are moved into folders named by their suffix."""
    folder, wanted = rng.choice(FOLDERS), rng.sample(_SUFFIXES, 1 + level)
    texts = {
        f"{folder}/{name}{rng.choice(wanted)}": f"{sentence(rng, 2)}\n" for name in rng.sample(NOUNS, 3 + 2 * level)
    }
    after = {f"{folder}/{path.rsplit('.', 1)[1]}/{path.rsplit('/', 1)[1]}": text for path, text in texts.items()}
    example = wanted[0].strip(".")
    say = rng.choice(
        (
            f"Move each file in {folder} into a folder below {folder} named after its suffix ({folder}/{example} "
            "and so on).",
            f"Sort the files of {folder} into sub-folders by their suffix: those in {wanted[0]} go to "
            f"{folder}/{example}, the others alike.",
        )
    )
    solve = f'cd {folder}; for f in *.*; do mkdir -p "${{f##*.}}"; mv "$f" "${{f##*.}}/"; done'
    return Draft(say, texts, check(after, gone=tuple(texts)), solve)


def largest(rng: random.Random, level: int, split: str) -> Draft:
    """The path of the largest or smallest file."""
    folder, which = rng.choice(FOLDERS), rng.choice(("largest", "smallest"))
    found = paths(rng, folder, 2 + 3 * level, rng.choice(_SUFFIXES), deep=level > 1)
    sizes = dict(zip(found, rng.sample(range(20, 400), len(found)), strict=True))
    wanted = sorted(found, key=lambda path: sizes[path], reverse=which == "largest")[:level]
    what = f"the {which} file" if level == 1 else f"the {level} {which} files, one a line, {which} first,"
    say = rng.choice(
        (
            f"Write the path of {what} below {folder} to answer.txt.",
            f"Find {what} in {folder} and its folders; answer.txt must name the path as seen from here.",
        )
    )
    texts = {path: "x" * size for path, size in sizes.items()}
    flags = "-rn" if which == "largest" else "-n"
    solve = f"find {folder} -type f -printf '%s %p\\n' | sort {flags} | head -n {level} | cut -d' ' -f2 > answer.txt"
    return Draft(say, texts, check({"answer.txt": joined(wanted)}), solve)


def drop_empty(rng: random.Random, level: int, split: str) -> Draft:
    """Empty files are deleted, the others stay."""
    folder = rng.choice(FOLDERS)
    found = paths(rng, folder, 1 + 3 * level, rng.choice(_SUFFIXES), deep=level > 1)
    texts = {path: "" if rng.random() < 0.3 else f"{sentence(rng, 2)}\n" for path in found}
    say = rng.choice(
        (
            f"Delete the empty files below {folder}.",
            f"Clean up {folder}: files without content go, all others stay.",
            f"Remove every file of zero bytes in {folder} and the folders in it.",
        )
    )
    full = {path: text for path, text in texts.items() if text}
    empty = tuple(path for path, text in texts.items() if not text)
    return Draft(say, texts, check(full, gone=empty), f"find {folder} -type f -empty -delete")


def same_content(rng: random.Random, level: int, split: str) -> Draft:
    """Which files have the same content."""
    folder, out = rng.choice(FOLDERS), f"{rng.choice(NOUNS)}.txt"
    found = paths(rng, folder, 4 * level, ".txt", deep=level > 1)
    texts = {path: f"{sentence(rng, 4)}\n" for path in found}
    twins = sorted(rng.sample(found, 2))
    texts[twins[1]] = texts[twins[0]]
    say = rng.choice(
        (
            f"Two files below {folder} have the same content. Write their paths to {out}, one a line, in "
            "alphabetical order.",
            f"Find the two identical files in {folder} and its folders and list their paths in {out}, sorted, "
            "one a line.",
        )
    )
    solve = f"find {folder} -type f -exec md5sum {{}} + | sort | uniq -w32 -D | awk '{{print $2}}' | sort > {out}"
    return Draft(say, texts, check({out: joined(twins)}), solve)


FAMILIES = {
    "new-suffix": Family(new_suffix),
    "rename-pairs": Family(rename_pairs),
    "by-suffix": Family(by_suffix),
    "largest-file": Family(largest),
    "drop-empty": Family(drop_empty),
    "same-content": Family(same_content),
}
