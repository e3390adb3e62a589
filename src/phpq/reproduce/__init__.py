"""The paper's tables and figures again, ours beside theirs: a grid of trainings in, pages out."""
