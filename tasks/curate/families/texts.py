"""Plain text: counting, sorting, replacing, cutting out."""

import random
import re

from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import joined
from tasks.curate.families.words import lines
from tasks.curate.families.words import paths


def count_lines(rng: random.Random, level: int, split: str) -> Draft:
    """How many lines contain a word; from level 2 in a folder, at level 3 without another word."""
    folder, (word, other) = rng.choice(FOLDERS), rng.sample(NOUNS, 2)
    found = paths(rng, folder, 1 if level == 1 else 4, ".txt", deep=level > 1)
    texts = {path: lines(rng, rng.randint(8, 20)) for path in found}
    kept = [
        line
        for text in texts.values()
        for line in text
        if word in line.split() and (level < 3 or other not in line.split())
    ]
    where = found[0] if level == 1 else f"all .txt files below {folder}"
    unless = f" and not the word '{other}'" if level == 3 else ""
    say = rng.choice(
        (
            f"How many lines of {where} contain the word '{word}'{unless}? Write the number to answer.txt.",
            f"Count the lines in {where} with the word '{word}'{unless} and put the count into answer.txt.",
        )
    )
    solve = f"grep -rhw --include='*.txt' '{word}' {folder if level > 1 else found[0]}"
    solve += f" | grep -vw '{other}'" if level == 3 else ""
    return Draft(
        say,
        {path: joined(text) for path, text in texts.items()},
        check({"answer.txt": f"{len(kept)}\n"}),
        f"({solve} || true) | wc -l > answer.txt",
    )


def top_words(rng: random.Random, level: int, split: str) -> Draft:
    """The most frequent words of a text."""
    folder, count = rng.choice(FOLDERS), (1, 3, 5)[level - 1]
    (path,) = paths(rng, folder, 1, ".txt")
    few = rng.sample(NOUNS, 8)
    text = [" ".join(rng.choice(few) for _ in range(6)) for _ in range(6 * level)]
    words = " ".join(text).split()
    ranked = sorted(set(words), key=lambda word: (-words.count(word), word))[:count]
    what = "the most frequent word" if count == 1 else f"the {count} most frequent words"
    order = "" if count == 1 else ", one a line, most frequent first"
    out = f"{rng.choice(NOUNS)}.txt"
    say = f"Write {what} of {path} to {out}{order}. Of equally frequent words the alphabetically first comes first."
    solve = (
        f"tr -s ' ' '\\n' < {path} | sort | uniq -c | sort -k1,1nr -k2 | head -n {count} | awk '{{print $2}}' > {out}"
    )
    return Draft(say, {path: joined(text)}, check({out: joined(ranked)}), solve)


def new_version(rng: random.Random, level: int, split: str) -> Draft:
    """One version number becomes another, in one file or several."""
    folder = rng.choice(FOLDERS)
    old, new = (f"{rng.randint(1, 3)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}" for _ in range(2))
    found = paths(rng, folder, level, ".conf", deep=level == 3)
    texts = {
        path: joined(
            [f"{name} = {rng.choice((old, new, rng.randint(10_000, 39_999)))}" for name in rng.sample(NOUNS, 4 * level)]
        )
        for path in found
    }
    where = found[0] if level == 1 else f"the .conf files below {folder}"
    say = rng.choice(
        (
            f"Replace version {old} by {new} in {where}, and change nothing else.",
            f"In {where}, every setting that has version {old} must get {new}; leave the others alone.",
        )
    )
    solve = f"find {folder} -name '*.conf' -exec sed -i 's/{old}/{new}/' {{}} +"
    return Draft(say, texts, check({path: text.replace(old, new) for path, text in texts.items()}), solve)


def sort_lines(rng: random.Random, level: int, split: str) -> Draft:
    """A list is sorted in place: by letters, by a number, by a number and without repeats."""
    folder = rng.choice(FOLDERS)
    (path,) = paths(rng, folder, 1, ".lst")
    entries = [f"{rng.randint(1, 200)} {rng.choice(NOUNS)}" for _ in range(rng.randint(2, 6 * level))]
    if level == 1:
        words = [entry.split()[1] for entry in entries]
        say = rng.choice((f"Sort the lines of {path} in place.", f"Bring the lines of {path} into alphabetical order."))
        return Draft(say, {path: joined(words)}, check({path: joined(sorted(words))}), f"sort -o {path} {path}")
    order = rng.choice(("smallest", "largest"))
    entries += rng.choices(entries, k=level)
    kept = sorted(set(entries) if level == 3 else entries)
    kept.sort(key=lambda entry: int(entry.split()[0]), reverse=order == "largest")
    once = " and keep only one of equal lines" if level == 3 else ""
    say = f"Sort {path} in place by the number at the start of each line, {order} first{once}; lines with the same"
    say += " number go by their word, alphabetically."
    flags = f"-k1,1n{'r' if order == 'largest' else ''} -k2"
    unique = f"sort -u -o {path} {path}; " if level == 3 else ""
    return Draft(say, {path: joined(entries)}, check({path: joined(kept)}), f"{unique}sort {flags} -o {path} {path}")


def cut_section(rng: random.Random, level: int, split: str) -> Draft:
    """A section of a Markdown file goes into a file of its own, at level 3 with those below it."""
    folder = rng.choice(FOLDERS)
    (path,) = paths(rng, folder, 1, ".md")
    titles = rng.sample(NOUNS, 3 + level)
    title, out = rng.choice(titles), f"{rng.choice(NOUNS)}.md"
    sections = {}
    for each in titles:
        text = [f"## {each}", *lines(rng, 2)]
        for below in rng.sample(NOUNS, level - 1):
            text += [f"### {below}", *lines(rng, 1)]
        sections[each] = text
    wanted = sections[title]
    below = ", with its sub-sections" if level > 1 else ""
    say = rng.choice(
        (
            f"Copy the section '{title}' of {path}{below} and with its heading, to {out}.",
            f"Put the part of {path} under the heading '## {title}' into {out}, heading included{below}.",
        )
    )
    solve = f"awk '/^## /{{keep = $0 == \"## {title}\"}} keep' {path} > {out}"
    whole = [f"# {path}", *(line for text in sections.values() for line in text)]
    return Draft(say, {path: joined(whole)}, check({out: joined(wanted)}), solve)


def mask_numbers(rng: random.Random, level: int, split: str) -> Draft:
    """Phone or card numbers in a text are made unreadable."""
    folder, mask = rng.choice(FOLDERS), rng.choice(("XXX", "***", "[removed]"))
    (path,) = paths(rng, folder, 1, ".txt")
    kinds = {"phone numbers (such as 555-1234)": r"\b\d{3}-\d{4}\b", "card numbers of 16 digits": r"\b\d{16}\b"}
    kind, pattern = rng.choice(list(kinds.items()))
    text = []
    for line in lines(rng, rng.randint(1, 4 * level)):
        phone, card = f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}", rng.randint(10**15, 10**16 - 1)
        text.append(f"{line} {rng.choice((phone, card, 7))}")
    after = [re.sub(pattern, mask, line) for line in text]
    say = rng.choice((f"Replace all {kind} in {path} by {mask}.", f"In {path}, write {mask} in the place of {kind}."))
    extended = pattern.replace(r"\d", "[0-9]")
    solve = f"sed -E -i 's/{extended}/{mask}/g' {path}"
    return Draft(say, {path: joined(text)}, check({path: joined(after)}), solve)


FAMILIES = {
    "count-lines": Family(count_lines),
    "top-words": Family(top_words),
    "new-version": Family(new_version),
    "sort-lines": Family(sort_lines),
    "cut-section": Family(cut_section),
    "mask-numbers": Family(mask_numbers),
}
