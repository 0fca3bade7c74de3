"""Families of small terminal tasks: one function each, from random numbers and a level to a draft.

A family draws its parameters and looks no further. That a drawn list may be sorted already, a pattern may match nothing
and two draws may read alike is left to the stages after it, which have to find the same in anybody's proposals.
"""

from tasks.curate.families import basic
from tasks.curate.families import code
from tasks.curate.families import files
from tasks.curate.families import logs
from tasks.curate.families import misleading
from tasks.curate.families import structured
from tasks.curate.families import tables
from tasks.curate.families import texts
from tasks.curate.families.family import Family

FAMILIES: dict[str, Family] = {
    name: family
    for module in (basic, texts, files, tables, structured, code, logs, misleading)
    for name, family in module.FAMILIES.items()
}
"""By name, which is also the kind of their tasks."""
