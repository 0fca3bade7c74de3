"""What the process that forks the proxies of `bench.kills` loads: it is frozen, or the first collection of each proxy
would touch, and so copy, all of it."""

import gc

import renderers.gpt_oss  # noqa: F401  the slowest of what a proxy imports later

import bench.kills  # noqa: F401

gc.freeze()
