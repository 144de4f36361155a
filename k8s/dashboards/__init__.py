"""Grafana dashboards, as programs. `python -m k8s.dashboards` writes the JSON files beside this one."""
