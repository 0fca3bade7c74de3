"""Imported with veRL in each process of Ray (VERL_USE_EXTERNAL_MODULES), before anything of veRL asks for a device."""

import os

from training.cpu_platform import register_cpu

if os.environ["VERL_PLATFORM"] == "cpu":
    register_cpu()
