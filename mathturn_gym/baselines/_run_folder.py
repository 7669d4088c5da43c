"""A run's folder: what is in it, written so that an interrupt at any moment leaves files that load.

    RUN/config.json       everything that decides the run (`RunConfig`)
    RUN/metrics.jsonl     one line per iteration, flushed
    RUN/tensorboard/      event files, where tensorboard is installed
    RUN/checkpoint/       the newest checkpoint (`_checkpoints`)
    RUN/checkpoint-N/     those before it, after N iterations, as many as `keep` says
    RUN/result.json       how it ended, and its figures on the test split; its presence means that the run is done
    RUN/curve.png         where matplotlib is installed
    RUN/.lock             held by the process that trains here

A checkpoint is written beside the old one and takes its place by renaming.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mathturn_gym._files import locked, write_atomically
from mathturn_gym.baselines._checkpoints import TrainerState, verify_checkpoint, write_checkpoint
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.decoding import PolicyConfig
from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError
from mathturn_gym.wrappers.policy import CausalLMPolicy

__all__ = ["RunFolder", "read_config", "read_metrics"]

_LOG = logging.getLogger(__name__)
_NEWEST: Final = "checkpoint"
_FRESH: Final = ".checkpoint.new"
_OLDER: Final = re.compile(r"checkpoint-(\d+)")
