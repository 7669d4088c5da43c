"""mathturn_gym: multi-turn mathematics reinforcement learning for language models."""
