"""Wrappers around environments and models, imported as `mathturn_gym.wrappers`."""

if __name__ == "wrappers":
    raise ImportError("import mathturn_gym.wrappers, not wrappers")
