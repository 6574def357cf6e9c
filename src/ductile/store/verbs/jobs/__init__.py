"""The verbs of a job from its submission to its end, and reading jobs."""
