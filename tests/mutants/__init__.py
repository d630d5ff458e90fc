"""Mutation tests: each mutant breaks one dangerous line of the product, and a named test must turn red.

    python -m tests.mutants --only "fencing token"

A mutant that survives shows a missing test, or an edit that changes nothing: write the test, or choose another edit.
"""
