"""Which proposed tasks are worth learning from: one file a stage."""
