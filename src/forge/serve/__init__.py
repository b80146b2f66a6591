"""Live queries, mutations and the change stream over HTTP: who asks is verified (`auth`) and counted (`limits`), what
happens is measured (`metrics`), and what can be asked is described (`openapi`).
"""
