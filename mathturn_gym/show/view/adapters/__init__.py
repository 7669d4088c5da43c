"""Logs of other trainers as the viewer's episodes, one module per trainer.

An adapter recognizes a line of a JSON-lines file by its fields and reads it; what a log does not hold (ids, log-probs,
verdicts) is not made up. Each module's docstring says where its trainer writes such logs and which fields are read.
"""

from mathturn_gym.show.view.adapters.trl import TRL_ROWS, VERL_DUMPS, VERL_OUTPUTS
from mathturn_gym.show.view.adapters.verifiers import VERIFIERS_RESULTS, VERIFIERS_TRACES

__all__ = ["ADAPTERS"]

ADAPTERS = (VERIFIERS_TRACES, VERIFIERS_RESULTS, VERL_OUTPUTS, VERL_DUMPS, TRL_ROWS)
"""In the order in which they are asked whether a line is theirs."""
