"""Adapters of Forge's own sources for the suite in `forge.testing.conformance`: each module has a `serving`."""
