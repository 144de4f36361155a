"""Deployment files that are made by programs: dashboards and rules. Not part of the wheel."""
