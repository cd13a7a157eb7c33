"""Callbacks that diagnose a model while it is trained, one module a framework, imported only there."""
