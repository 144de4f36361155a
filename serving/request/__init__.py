"""Request: admission, then the stages parse → enrich → extract."""
