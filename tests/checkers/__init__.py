"""The randomized checkers of this repository."""
