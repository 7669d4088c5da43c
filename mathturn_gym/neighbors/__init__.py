"""The environment inside other trainers: one module per neighbor, each loaded when it is imported.

    mathturn_gym.neighbors.trl         GRPOTrainer: a rollout, an environment with a tool, and credit per turn
    mathturn_gym.neighbors.verl        an AgentLoop
    mathturn_gym.neighbors.slime       a custom_generate
    mathturn_gym.neighbors.areal.workflow       a RolloutWorkflow
    mathturn_gym.neighbors.verifiers   load_environment, for verifiers and prime-rl
    mathturn_gym.neighbors.tinker      an Env and its builders

Nothing of them is installed with this package, and none is imported by `import mathturn_gym`. `docs/integrations.md` has
the shortest use of each, and what each has been tested against.
"""
