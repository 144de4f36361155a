"""Default promotion rule, which the command line shows without loading what asks it."""

EXAMPLES = 20_000
DEFAULT = f"examples >= {EXAMPLES} and auc > -0.001 and calibration in 0.9..1.1"
