"""A busy machine makes no property false: Hypothesis judges values, not seconds."""

from hypothesis import settings

settings.register_profile("forge", deadline=None)
settings.load_profile("forge")
