"""`livectr rollout`: a changed pipeline learns beside the old one, is compared, and takes its place."""
