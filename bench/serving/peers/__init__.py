"""Peers of `livectr bench serving`: what a user would write or install instead."""
