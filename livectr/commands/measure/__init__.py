"""Commands that show and measure: plans, checkpoints, models, and LiveCTR itself."""
