"""The environment as a package of OpenEnv."""
