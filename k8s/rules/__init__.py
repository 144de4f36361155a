"""Prometheus rules, as programs. `python -m k8s.rules` writes the YAML files beside this one."""
