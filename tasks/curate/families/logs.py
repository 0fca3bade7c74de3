"""Logs of services: counting, cutting out a time, finding the slowest."""

import random
from dataclasses import dataclass

from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import joined
from tasks.curate.families.words import paths
from tasks.curate.families.words import sentence

_SEVERITIES = ("INFO", "WARN", "ERROR", "DEBUG")


@dataclass(frozen=True)
class Entry:
    """A line of a log: when, in seconds of a day, how bad, of which service, and what it took in ms."""

    at: int
    severity: str
    service: str
    took_ms: int
    text: str

    @property
    def time(self) -> str:
        return f"{self.at // 3600:02}:{self.at // 60 % 60:02}:{self.at % 60:02}"

    @property
    def line(self) -> str:
        return f"{self.time} {self.severity} {self.service} {self.took_ms}ms {self.text}"


def _log(rng: random.Random, count: int) -> tuple[str, list[Entry]]:
    """A log's path and `count` entries in order of time; no two took equally long."""
    (path,) = paths(rng, rng.choice(FOLDERS), 1, ".log")
    services = rng.sample(NOUNS, 4)
    times = sorted(rng.sample(range(24 * 3600), count))
    took = rng.sample(range(1, 2000), count)
    return path, [
        Entry(at, rng.choice(_SEVERITIES), rng.choice(services), ms, sentence(rng, 3))
        for at, ms in zip(times, took, strict=True)
    ]


def log_count(rng: random.Random, level: int, split: str) -> Draft:
    """How many entries of a severity; at level 2 of a service; at level 3 per service."""
    path, entries = _log(rng, 12 * level)
    severity, out = rng.choice(_SEVERITIES), f"{rng.choice(NOUNS)}.txt"
    service = rng.choice(entries).service
    found = [entry for entry in entries if entry.severity == severity]
    if level == 3:
        counts = {name: sum(entry.service == name for entry in found) for name in {entry.service for entry in found}}
        say = (
            f"For each service with {severity} entries in {path} write 'service number' to {out}, most first; services"
        )
        say += " with the same number alphabetically."
        solve = f"awk '$2 == \"{severity}\" {{n[$3]++}} END {{for (s in n) print s, n[s]}}' {path} | sort -k2,2nr -k1,1"
        text = joined([f"{name} {n}" for name, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))])
        return Draft(say, {path: joined([entry.line for entry in entries])}, check({out: text}), f"{solve} > {out}")
    of = f" of the service {service}" if level == 2 else ""
    say = rng.choice(
        (
            f"How many {severity} entries{of} are in {path}? Write the number to {out}.",
            f"Count the {severity} lines{of} of {path}; {out} gets the count and nothing else.",
        )
    )
    number = sum(level == 1 or entry.service == service for entry in found)
    only = f' && $3 == "{service}"' if level == 2 else ""
    solve = f"awk '$2 == \"{severity}\"{only} {{n++}} END {{print n + 0}}' {path} > {out}"
    return Draft(say, {path: joined([entry.line for entry in entries])}, check({out: f"{number}\n"}), solve)


def log_window(rng: random.Random, level: int, split: str) -> Draft:
    """The entries between two times, at level 2 of a severity, at level 3 from two logs in order of time."""
    logs = [_log(rng, 10 * level) for _ in range(2 if level == 3 else 1)]
    out = f"{rng.choice(NOUNS)}.log"
    start, length = rng.randint(0, 20), rng.randint(1, 4)
    first, last = f"{start:02}:00:00", f"{start + length:02}:00:00"
    severity = rng.choice(_SEVERITIES)
    kept = [
        entry
        for _, entries in logs
        for entry in entries
        if first <= entry.time < last and (level != 2 or entry.severity == severity)
    ]
    where = " and ".join(path for path, _ in logs)
    which = f"the {severity} lines" if level == 2 else "the lines"
    order = ", in order of time" if level == 3 else ""
    say = rng.choice(
        (
            f"Copy {which} of {where} from {first} up to but not including {last} to {out}{order}.",
            f"{out} must hold {which} of {where} whose time is at least {first} and before {last}{order}.",
        )
    )
    only = f' && $2 == "{severity}"' if level == 2 else ""
    files = " ".join(path for path, _ in logs)
    solve = f'awk \'$1 >= "{first}" && $1 < "{last}"{only}\' {files} | sort > {out}'
    texts = {path: joined([entry.line for entry in entries]) for path, entries in logs}
    return Draft(say, texts, check({out: joined(sorted(entry.line for entry in kept))}), solve)


def log_slowest(rng: random.Random, level: int, split: str) -> Draft:
    """What took longest: one entry, one of a service, the sum per service."""
    path, entries = _log(rng, 10 * level)
    out, service = f"{rng.choice(NOUNS)}.txt", rng.choice(entries).service
    text = joined([entry.line for entry in entries])
    if level == 3:
        total = {
            name: sum(entry.took_ms for entry in entries if entry.service == name)
            for name in {entry.service for entry in entries}
        }
        slowest = max(total, key=lambda name: (total[name], name))
        say = f"Which service in {path} spent the most milliseconds altogether? Write its name to {out}."
        solve = f"awk '{{n[$3] += $4}} END {{for (s in n) print n[s], s}}' {path} | sort -n | tail -n 1 | cut -d' ' -f2"
        return Draft(say, {path: text}, check({out: slowest}), f"{solve} > {out}")
    used = [entry for entry in entries if level == 1 or entry.service == service]
    of = f" of the service {service}" if level == 2 else ""
    say = rng.choice(
        (
            f"Write the time (hh:mm:ss) of the entry{of} in {path} that took longest to {out}.",
            f"When was the slowest entry{of} in {path}? {out} gets its time as it stands in the log.",
        )
    )
    only = f'$3 == "{service}" ' if level == 2 else ""
    solve = f"awk '{only}{{print $4 + 0, $1}}' {path} | sort -n | tail -n 1 | cut -d' ' -f2 > {out}"
    return Draft(say, {path: text}, check({out: max(used, key=lambda entry: entry.took_ms).time}), solve)


FAMILIES = {
    "log-count": Family(log_count),
    "log-window": Family(log_window),
    "log-slowest": Family(log_slowest),
}
