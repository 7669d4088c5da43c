"""Beyond one process: the same episodes and the same gradients, from more machines.

    mathturn_gym.neighbors.engines.ray           rollout actors and policy actors on Ray (needs `pip install '.[ray]'`)
    mathturn_gym.neighbors.engines.distributed   a learner of several ranks, on torch.distributed

An engine changes where a run's work is done. What episode i is, and what a batch's gradient is, stay what they are in
one process. `docs/engines.md` says how to use them, and what saturates first.
"""
