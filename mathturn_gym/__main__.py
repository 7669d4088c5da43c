"""`python -m mathturn_gym` is `mathturn`."""

from mathturn_gym.cli.app import main

if __name__ == "__main__":
    main()
