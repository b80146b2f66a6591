"""Live queries, mutations and the change stream over HTTP. Callers are authenticated (`auth`) and limited (`limits`),
activity is measured (`metrics`), and the endpoints are described (`openapi`).
"""
