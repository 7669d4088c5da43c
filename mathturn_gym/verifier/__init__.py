"""A verifier that can be trusted: right, fast, and impossible to hang or fool.

Usable alone: it needs gymnasium (which the package registers its environments with), numpy, sympy and math-verify.
Importing it loads neither sympy nor math-verify; symbolic work happens in processes of its own.

    Verifier, Verdict, Status     a response and a gold answer in, a verdict out
    explain                       a verdict in words
    extract, Extraction           which part of a response is its answer
    answer_key                    one canonical form for all spellings of an answer
    literal_value, is_readable    what an answer is, without a gold to compare it with
    Gold                          the type of accepted answers: a text or several

`mathturn_gym.verifier.rewards` is the verifier as other trainers call it; `mathturn_gym.verifier.audit` measures verifiers on
labeled cases. Everything whose module begins with `_` is internal.
"""

from __future__ import annotations

from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier._verifier import Gold, Verifier, explain
from mathturn_gym.verifier.reading._extraction import Extraction, ExtractionPolicy, extract
from mathturn_gym.verifier.reading._numbers import literal_value
from mathturn_gym.verifier.reading._prepared import answer_key, is_readable

__all__ = [
    "Extraction",
    "ExtractionPolicy",
    "Gold",
    "Status",
    "Verdict",
    "Verifier",
    "answer_key",
    "explain",
    "extract",
    "is_readable",
    "literal_value",
]
