"""Run where `[openai]` alone is installed: the policy asks a server, here one that is not there."""

from __future__ import annotations

import numpy as np

from mathturn_gym.errors import PolicyError
from mathturn_gym.policies import OpenAIPolicy

try:
    with OpenAIPolicy("http://127.0.0.1:9", retries=0) as policy:
        policy.complete([np.array([5, 8])], max_tokens=[2])
except PolicyError as error:
    assert "no answer after 1 attempts" in str(error), error  # noqa: PT017  a bare environment has no pytest
else:
    raise AssertionError("nothing listens there, and the policy did not say so")
