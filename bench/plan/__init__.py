"""Measured points of `livectr plan`, and its predictions beside other measured runs."""
