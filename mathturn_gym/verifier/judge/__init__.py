"""A judge for what the verifier leaves undecided: optional, off by default, counted, and never silent.

    JudgedVerifier   a `Verifier` whose undecided cases (and, where asked for, disagreements) go to a judge
    ServerJudge      a judge: a model behind an OpenAI-compatible server
    JudgeQuestion    what a judge is asked
    JudgeCounts      what it was asked, and what came of it

A judge is `ServerJudge`, or any function of a `JudgeQuestion`.
"""

from __future__ import annotations

from mathturn_gym.verifier.judge._judge import JudgeQuestion, ServerJudge
from mathturn_gym.verifier.judge._judged import JudgedVerifier

__all__ = ["JudgeQuestion", "JudgedVerifier", "ServerJudge"]
